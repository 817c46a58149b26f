//! How sections and settings are declared: once, with type, default and reason. Reading, the
//! commented example, the printed form, the names in the environment and the suggestions for
//! misspelt keys all come from that one declaration.

use super::secret::{REDACTED, Secret};
use super::units::{ByteSize, TIME_FORM, TimeSpan};
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::{Table, Value};

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// In quotes.
    Text,
    /// `true`, `false`, a number: as it is.
    Literal,
    /// A list of texts; in the environment separated by commas.
    List,
}

/// A type that a setting can have.
pub(crate) trait Setting: Sized {
    /// How it is written.
    const FORM: Form;
    /// What stands in the example for a setting that has no value.
    const SAMPLE: &'static str;
    /// Reads it. Errors: what is wrong, for people.
    fn read(value: Value) -> Result<Self, String>;
    /// Its TOML form, secrets replaced; `None` when it has no value.
    fn shown(&self) -> Option<String>;
}

/// One setting, as it stands.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) docs: &'static [&'static str],
    pub(crate) form: Form,
    pub(crate) sample: &'static str,
    pub(crate) value: Option<String>,
}

/// One section, as it stands.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) path: String,
    pub(crate) docs: &'static [&'static str],
    pub(crate) entries: Vec<Entry>,
}

/// A section of the configuration.
pub(crate) trait Section: Default {
    /// Reads what is there, keeps the default of what is not or cannot be read, and notes what is
    /// wrong.
    fn read(table: Table, path: &str, problems: &mut Vec<String>) -> Self;
    /// The section and those inside it.
    fn parts(&self, path: &str, out: &mut Vec<Part>);
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Takes one setting out of its section.
pub(crate) fn take<T: Setting>(table: &mut Table, path: &str, name: &str, default: T, problems: &mut Vec<String>) -> T {
    let Some(value) = table.remove(name) else { return default };
    match T::read(value) {
        Ok(read) => read,
        Err(problem) => {
            problems.push(format!("{}: {problem}", join(path, name)));
            default
        }
    }
}

/// Takes one section out of the one around it.
pub(crate) fn take_section<T: Section>(table: &mut Table, path: &str, name: &str, problems: &mut Vec<String>) -> T {
    let path = join(path, name);
    match table.remove(name) {
        None => T::default(),
        Some(Value::Table(inner)) => T::read(inner, &path, problems),
        Some(_) => {
            problems.push(format!("{path}: is a section, written as [{path}]"));
            T::default()
        }
    }
}

/// Notes what is left in a section: keys that nobody knows.
pub(crate) fn refuse_rest(rest: &Table, path: &str, known: &[&str], problems: &mut Vec<String>) {
    for key in rest.keys() {
        problems.push(format!("{}: there is no such setting{}", join(path, key), suggestion(key, known)));
    }
}

/// `; did you mean ...?` for the nearest of the known names, or what is known when none is near.
pub(crate) fn suggestion(key: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|name| (distance(key, name), *name)).min();
    match nearest {
        Some((distance, name)) if distance <= 2.max(key.len() / 3) => format!("; did you mean {name}?"),
        _ => format!("; known here: {}", known.join(", ")),
    }
}

/// Number of single-character edits between two names.
fn distance(one: &str, two: &str) -> usize {
    let two: Vec<char> = two.chars().collect();
    let mut row: Vec<usize> = (0..=two.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((above_left, above), b) in row.iter().zip(row.iter().skip(1)).zip(&two) {
            let left = next.last().copied().unwrap_or(0);
            next.push((above_left + usize::from(a != *b)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

/// Declares a section: settings, and sections inside it.
macro_rules! section {
    ($(#[doc = $section_doc:literal])* $name:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty = $default:expr;)*
        $(=> { $($(#[doc = $inner_doc:literal])* $inner:ident: $inner_type:ty;)* })?
    }) => {
        $(#[doc = $section_doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
            $($($(#[doc = $inner_doc])* pub $inner: $inner_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* $($($inner: <$inner_type>::default(),)*)? }
            }
        }

        impl $crate::config::schema::Section for $name {
            fn read(mut table: toml::Table, path: &str, problems: &mut Vec<String>) -> Self {
                let read = Self {
                    $($field: $crate::config::schema::take(&mut table, path, stringify!($field), $default, problems),)*
                    $($($inner: $crate::config::schema::take_section(&mut table, path, stringify!($inner), problems),)*)?
                };
                let known = [$(stringify!($field),)* $($(stringify!($inner),)*)?];
                $crate::config::schema::refuse_rest(&table, path, &known, problems);
                read
            }

            fn parts(&self, path: &str, out: &mut Vec<$crate::config::schema::Part>) {
                let entries = vec![$($crate::config::schema::entry(stringify!($field), &[$($doc),*], &self.$field)),*];
                out.push($crate::config::schema::Part { path: path.to_owned(), docs: &[$($section_doc),*], entries });
                $($($crate::config::schema::Section::parts(&self.$inner, &$crate::config::schema::join(path, stringify!($inner)), out);)*)?
            }
        }
    };
}
pub(crate) use section;

/// Describes one setting.
pub(crate) fn entry<T: Setting>(name: &'static str, docs: &'static [&'static str], value: &T) -> Entry {
    Entry { name, docs, form: T::FORM, sample: T::SAMPLE, value: value.shown() }
}

/// Declares a setting that is one of a few words.
macro_rules! choice {
    ($(#[doc = $doc:literal])* $name:ident = $sample:literal { $($(#[doc = $word_doc:literal])* $variant:ident = $word:literal,)* }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $word_doc])* $variant,)*
        }

        impl $name {
            /// The word that stands in the configuration.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl $crate::config::schema::Setting for $name {
            const FORM: $crate::config::schema::Form = $crate::config::schema::Form::Text;
            const SAMPLE: &'static str = $sample;
            fn read(value: toml::Value) -> Result<Self, String> {
                let words = [$($word),*];
                match value.as_str() {
                    $(Some($word) => Ok(Self::$variant),)*
                    _ => Err(format!("{value} is none of {}", words.join(", "))),
                }
            }
            fn shown(&self) -> Option<String> {
                Some(format!("\"{}\"", self.as_str()))
            }
        }
    };
}
pub(crate) use choice;

fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

fn text_of(value: Value, expected: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(format!("{other} is not {expected}, in quotes")),
    }
}

impl Setting for ByteSize {
    const FORM: Form = Form::Text;
    const SAMPLE: &'static str = "\"64MiB\"";
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Integer(bytes) => u64::try_from(bytes).map(Self::new).map_err(|_| format!("{bytes} is below 0")),
            Value::String(text) => text.parse().map_err(|error| format!("{error}")),
            other => Err(format!("{other} is not a size, as in \"64MiB\"")),
        }
    }
    fn shown(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

impl Setting for TimeSpan {
    const FORM: Form = Form::Text;
    const SAMPLE: &'static str = "\"30s\"";
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => text.parse().map_err(|error| format!("{error}")),
            other => Err(format!("{other} is not {TIME_FORM}")),
        }
    }
    fn shown(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

impl Setting for bool {
    const FORM: Form = Form::Literal;
    const SAMPLE: &'static str = "false";
    fn read(value: Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| format!("{value} is neither true nor false"))
    }
    fn shown(&self) -> Option<String> {
        Some(self.to_string())
    }
}

macro_rules! number_setting {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            const FORM: Form = Form::Literal;
            const SAMPLE: &'static str = "1";
            fn read(value: Value) -> Result<Self, String> {
                let number = value.as_integer().and_then(|number| <$type>::try_from(number).ok());
                number.ok_or_else(|| format!("{value} is not a whole number from 0 to {}", <$type>::MAX))
            }
            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
number_setting!(u16, u32, usize);

impl Setting for String {
    const FORM: Form = Form::Text;
    const SAMPLE: &'static str = "\"...\"";
    fn read(value: Value) -> Result<Self, String> {
        text_of(value, "a text")
    }
    fn shown(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Setting for PathBuf {
    const FORM: Form = Form::Text;
    const SAMPLE: &'static str = "\"/path\"";
    fn read(value: Value) -> Result<Self, String> {
        let text = text_of(value, "a path")?;
        if text.is_empty() { Err("an empty path is none; leave the setting out".to_owned()) } else { Ok(Self::from(text)) }
    }
    fn shown(&self) -> Option<String> {
        Some(quoted(&self.to_string_lossy()))
    }
}

impl Setting for SocketAddr {
    const FORM: Form = Form::Text;
    const SAMPLE: &'static str = "\"127.0.0.1:7440\"";
    fn read(value: Value) -> Result<Self, String> {
        let text = text_of(value, "an address with a port")?;
        text.parse().map_err(|_| format!("{text:?} is not an IP address with a port, as in \"127.0.0.1:7440\" or \"[::1]:7440\""))
    }
    fn shown(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

impl Setting for Secret {
    const FORM: Form = Form::Text;
    const SAMPLE: &'static str = "\"...\"";
    fn read(value: Value) -> Result<Self, String> {
        // The value is not in the message: it may be the secret, only not in quotes.
        match value {
            Value::String(text) if !text.is_empty() => Ok(Self::new(text)),
            Value::String(_) => Err("an empty secret is none; leave the setting out".to_owned()),
            _ => Err("a secret is a text, in quotes".to_owned()),
        }
    }
    fn shown(&self) -> Option<String> {
        Some(quoted(REDACTED))
    }
}

impl<T: Setting> Setting for Option<T> {
    const FORM: Form = T::FORM;
    const SAMPLE: &'static str = T::SAMPLE;
    fn read(value: Value) -> Result<Self, String> {
        T::read(value).map(Some)
    }
    fn shown(&self) -> Option<String> {
        self.as_ref().and_then(T::shown)
    }
}

impl Setting for Vec<PathBuf> {
    const FORM: Form = Form::List;
    const SAMPLE: &'static str = "[\"/path\"]";
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Array(items) => items.into_iter().map(PathBuf::read).collect(),
            other => Err(format!("{other} is not a list of paths, as in [\"/one\", \"/two\"]")),
        }
    }
    fn shown(&self) -> Option<String> {
        let items: Vec<String> = self.iter().filter_map(Setting::shown).collect();
        (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        for (one, two, edits) in [("", "", 0), ("a", "", 1), ("listen", "listen", 0), ("lisen", "listen", 1), ("kitten", "sitting", 3)] {
            assert_eq!(distance(one, two), edits, "{one} {two}");
            assert_eq!(distance(two, one), edits, "{two} {one}");
        }
    }

    #[test]
    fn a_misspelt_key_gets_its_neighbour_and_a_strange_one_the_list() {
        assert_eq!(suggestion("lisen", &["listen", "grace"]), "; did you mean listen?");
        assert_eq!(suggestion("zzzzzzz", &["listen", "grace"]), "; known here: listen, grace");
    }

    #[test]
    fn a_secret_that_is_not_in_quotes_is_not_in_the_message() {
        let refused = Secret::read(Value::Integer(424_242)).unwrap_err();
        assert!(!refused.contains("424242"));
    }

    #[test]
    fn a_time_without_unit_is_refused_with_the_form() {
        assert!(TimeSpan::read(Value::Integer(30)).unwrap_err().contains("30s"));
        assert_eq!(ByteSize::read(Value::Integer(30)), Ok(ByteSize::new(30)));
        assert!(ByteSize::read(Value::Integer(-1)).is_err());
    }
}
