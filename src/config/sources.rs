//! Where settings come from: the file, the environment, flags; later ones win.

use super::schema::{Form, Part, Section, suggestion};
use super::{Config, ConfigError, validate};
use std::path::PathBuf;
use toml::{Table, Value};

/// First letters of every variable that is looked at.
const PREFIX: &str = "FOREBAY_";

/// What a configuration is read from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file; the embedded default when there is none.
    pub file: Option<PathBuf>,
    /// Variables of the environment. Those called `FOREBAY_SECTION__KEY` count.
    pub environment: Vec<(String, String)>,
    /// Flags, as (path of the setting, its TOML value).
    pub flags: Vec<(String, Value)>,
}

/// Reads, merges and validates. Blocking. Errors: everything that is wrong, at once; a file that
/// is not TOML is a problem of its own.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let (config, mut problems) = merged(sources)?;
    problems.extend(validate::problems(&config));
    if problems.is_empty() { Ok(config) } else { Err(ConfigError { problems }) }
}

/// Reads and merges; what cannot be read is a problem and keeps its default. Errors: a file that
/// cannot be read at all.
pub(super) fn merged(sources: &Sources) -> Result<(Config, Vec<String>), ConfigError> {
    let mut problems = Vec::new();
    let (mut table, base) = match &sources.file {
        Some(path) => (read_file(path)?, Config::default()),
        None => (Table::new(), Config::embedded()),
    };
    let schema = all_parts();
    if sources.file.is_none() {
        lay_under(&mut table, &base);
    }
    for (name, value) in &sources.environment {
        if let Some((path, value)) = from_environment(name, value, &schema, &mut problems) {
            set(&mut table, &path, value, &mut problems);
        }
    }
    for (path, value) in &sources.flags {
        set(&mut table, path, value.clone(), &mut problems);
    }
    let config = Config::read(table, "", &mut problems);
    Ok((config, problems))
}

fn read_file(path: &std::path::Path) -> Result<Table, ConfigError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::one(format!("{shown}: cannot be read: {error}")))?;
    // Only the message and the line: the text around it may hold a secret.
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text.get(..span.start).unwrap_or_default().lines().count().max(1));
        ConfigError::one(format!("{shown}, line {line}: {}", error.message()))
    })
}

/// The settings in which the embedded default differs from the defaults.
fn lay_under(table: &mut Table, embedded: &Config) {
    let mut object = Table::new();
    object.insert("kind".to_owned(), Value::String(embedded.object.kind.as_str().to_owned()));
    let directory = Table::from_iter([("opt_in".to_owned(), Value::Boolean(embedded.object.directory.opt_in))]);
    object.insert("directory".to_owned(), Value::Table(directory));
    table.insert("object".to_owned(), Value::Table(object));
}

fn all_parts() -> Vec<Part> {
    let mut parts = Vec::new();
    Config::default().parts("", &mut parts);
    parts
}

/// Takes a variable apart. Those without two underscores are not settings (`FOREBAY_URL`).
fn from_environment(name: &str, value: &str, schema: &[Part], problems: &mut Vec<String>) -> Option<(String, Value)> {
    let rest = name.strip_prefix(PREFIX).filter(|rest| rest.contains("__"))?;
    let path = rest.to_ascii_lowercase().replace("__", ".");
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path.as_str()));
    let Some(part) = schema.iter().find(|part| part.path == section) else {
        let sections: Vec<&str> = schema.iter().map(|part| part.path.as_str()).filter(|path| !path.is_empty()).collect();
        problems.push(format!("{name}: there is no section {section}{}", suggestion(section, &sections)));
        return None;
    };
    let Some(entry) = part.entries.iter().find(|entry| entry.name == key) else {
        let keys: Vec<&str> = part.entries.iter().map(|entry| entry.name).collect();
        problems.push(format!("{name}: there is no such setting{}", suggestion(key, &keys)));
        return None;
    };
    let value = match entry.form {
        Form::Text => Value::String(value.to_owned()),
        Form::List => Value::Array(value.split(',').map(|item| Value::String(item.trim().to_owned())).collect()),
        Form::Literal => literal(value),
    };
    Some((path, value))
}

/// `true`, `false` and numbers as such, anything else as a text that the setting then refuses.
fn literal(text: &str) -> Value {
    match (text.parse::<bool>(), text.parse::<i64>()) {
        (Ok(flag), _) => Value::Boolean(flag),
        (_, Ok(number)) => Value::Integer(number),
        _ => Value::String(text.to_owned()),
    }
}

fn set(table: &mut Table, path: &str, value: Value, problems: &mut Vec<String>) {
    let Some((section, rest)) = path.split_once('.') else {
        table.insert(path.to_owned(), value);
        return;
    };
    let inner = table.entry(section.to_owned()).or_insert_with(|| Value::Table(Table::new()));
    match inner {
        Value::Table(inner) => set(inner, rest, value, problems),
        _ => problems.push(format!("{section}: is a section, written as [{section}]")),
    }
}
