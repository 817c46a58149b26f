//! Claims that hold for every setting, by name, made from the declarations themselves.

use super::*;
use crate::config::schema::Entry;
use crate::config::sources::merged;

/// Three values of a setting's type that differ, in TOML; `None` for one of a few words.
fn three_values(entry: &Entry) -> Option<[String; 3]> {
    let sample = entry.value.clone().unwrap_or_else(|| entry.sample.to_owned());
    let of = |texts: [&str; 3]| Some(texts.map(str::to_owned));
    let inner = sample.trim_matches('"');
    match entry.form {
        Form::List => of(["[\"/a\"]", "[\"/b\", \"/c\"]", "[\"/d\"]"]),
        Form::Literal if inner.parse::<bool>().is_ok() => None,
        Form::Literal => of(["11", "12", "13"]),
        Form::Text if inner.parse::<TimeSpan>().is_ok() => of(["\"11s\"", "\"12m\"", "\"13h\""]),
        Form::Text if inner.parse::<ByteSize>().is_ok() => of(["\"11KiB\"", "\"12MiB\"", "\"13GiB\""]),
        Form::Text if inner.parse::<std::net::SocketAddr>().is_ok() => of(["\"127.0.0.1:11\"", "\"127.0.0.1:12\"", "\"[::1]:13\""]),
        Form::Text if is_choice(entry) => None,
        Form::Text => of(["\"text-11\"", "\"text-12\"", "\"text-13\""]),
    }
}

/// Whether a text may only be one of a few words.
fn is_choice(entry: &Entry) -> bool {
    let path = path_of(entry.name);
    let text = format!("[{}]\n{} = \"surely not one of them\"\n", path, entry.name);
    let mut problems = Vec::new();
    Config::read(text.parse().unwrap(), "", &mut problems);
    problems.iter().any(|problem| problem.contains("is none of"))
}

/// The section of a setting; for names that stand in one section only.
fn path_of(name: &str) -> String {
    parts().into_iter().find(|part| part.entries.iter().any(|entry| entry.name == name)).map(|part| part.path).unwrap_or_default()
}

fn every_setting() -> Vec<(String, Entry)> {
    parts().into_iter().flat_map(|part| part.entries.into_iter().map(move |entry| (part.path.clone(), entry))).collect()
}

/// What a TOML value looks like in the environment.
fn in_environment(value: &str) -> String {
    let bare = value.trim_start_matches('[').trim_end_matches(']');
    bare.split(", ").map(|item| item.trim_matches('"')).collect::<Vec<_>>().join(",")
}

/// The configuration from a file, the environment and flags, without the checks of what fits together.
fn read_from(file: &str, environment: &[(String, String)], flags: &[(String, Value)]) -> (Config, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("forebay.toml");
    std::fs::write(&path, file).unwrap();
    merged(&Sources { file: Some(path), environment: environment.to_vec(), flags: flags.to_vec() }).unwrap()
}

/// The line of one setting in the printed form.
fn printed(config: &Config, section: &str, name: &str) -> Option<String> {
    let mut parts = Vec::new();
    config.parts("", &mut parts);
    let part = parts.into_iter().find(|part| part.path == section)?;
    part.entries.into_iter().find(|entry| entry.name == name)?.value
}

fn toml_value(text: &str) -> Value {
    let table: Table = format!("value = {text}").parse().unwrap();
    table.get("value").cloned().unwrap()
}

#[test]
fn every_setting_is_taken_from_the_file_then_the_environment_then_flags() {
    let mut n_looked_at = 0;
    for (section, entry) in every_setting() {
        let Some([of_file, of_environment, of_flag]) = three_values(&entry) else { continue };
        n_looked_at += 1;
        let name = entry.name;
        let variable = format!("FOREBAY_{}__{}", section.replace('.', "__").to_uppercase(), name.to_uppercase());
        let file = format!("[{section}]\n{name} = {of_file}\n");
        let environment = [(variable, in_environment(&of_environment))];
        let flags = [(format!("{section}.{name}"), toml_value(&of_flag))];
        let is_secret = printed(&read_from(&file, &[], &[]).0, &section, name).is_some_and(|text| text.contains(REDACTED));
        type Case<'a> = (&'a [(String, String)], &'a [(String, Value)], &'a str);
        let cases: [Case<'_>; 3] = [(&[], &[], &of_file), (&environment, &[], &of_environment), (&environment, &flags, &of_flag)];
        let mut seen = BTreeSet::new();
        for (environment, flags, expected) in cases {
            let (config, problems) = read_from(&file, environment, flags);
            assert_eq!(problems, Vec::<String>::new(), "{section}.{name} = {expected}");
            if is_secret {
                seen.insert(format!("{:?}", config.auth.admin_token.as_ref().map(Secret::reveal)));
                continue;
            }
            assert_eq!(printed(&config, &section, name).as_deref(), Some(expected), "{section}.{name}");
        }
        assert!(name != "admin_token" || seen.len() == 3, "a secret is taken from each source too: {seen:?}");
    }
    assert!(n_looked_at > 60, "only {n_looked_at} settings were looked at");
}

#[test]
fn every_setting_that_is_misspelt_is_refused_by_its_full_name() {
    for (section, entry) in every_setting() {
        for wrong in [format!("{}x", entry.name), format!("{}_", entry.name), format!("x{}", entry.name)] {
            let (config, problems) = read_from(&format!("[{section}]\n{wrong} = 1\n"), &[], &[]);
            assert!(
                problems.iter().any(|problem| problem.starts_with(&format!("{section}.{wrong}: there is no such setting"))),
                "{problems:?}"
            );
            assert_eq!(config, Config::default(), "a misspelt setting changes nothing");
        }
    }
}

#[test]
fn every_misspelt_variable_is_refused_by_the_name_of_the_variable() {
    for (section, entry) in every_setting() {
        let variable = format!("FOREBAY_{}__{}_X", section.replace('.', "__").to_uppercase(), entry.name.to_uppercase());
        let (_, problems) = read_from("", &[(variable.clone(), "1".to_owned())], &[]);
        assert!(problems.iter().any(|problem| problem.starts_with(&format!("{variable}: "))), "{variable}: {problems:?}");
    }
}

#[test]
fn every_setting_refuses_a_value_of_another_type_by_its_full_name() {
    for (section, entry) in every_setting() {
        for wrong in ["[[1]]", "{ a = 1 }", "2020-01-01", "-1", "1.5"] {
            let (config, problems) = read_from(&format!("[{section}]\n{} = {wrong}\n", entry.name), &[], &[]);
            let full = format!("{section}.{}: ", entry.name);
            assert!(problems.iter().any(|problem| problem.starts_with(&full)), "{full}{wrong} was taken: {problems:?}");
            assert_eq!(config, Config::default(), "{full}a refused value changes nothing");
        }
    }
}

#[test]
fn every_section_refuses_to_be_a_value() {
    for part in parts().into_iter().filter(|part| !part.path.is_empty()) {
        let (outer, name) =
            part.path.rsplit_once('.').map_or((String::new(), part.path.as_str()), |(outer, name)| (format!("[{outer}]\n"), name));
        let (_, problems) = read_from(&format!("{outer}{name} = 1\n"), &[], &[]);
        assert!(problems.iter().any(|problem| problem.starts_with(&format!("{}: is a section", part.path))), "{}: {problems:?}", part.path);
    }
}

#[test]
fn every_size_and_number_takes_its_bounds_and_nothing_beyond() {
    for (section, entry) in every_setting() {
        let Some([sample, ..]) = three_values(&entry) else { continue };
        let is_size = sample.contains("KiB");
        if !is_size && entry.form != Form::Literal {
            continue;
        }
        let file = |value: &str| format!("[{section}]\n{} = {value}\n", entry.name);
        assert_eq!(read_from(&file("0"), &[], &[]).1, Vec::<String>::new(), "{section}.{} = 0 is of the right type", entry.name);
        let beyond = if is_size { "\"99999999999TiB\"" } else { "99999999999999999999" };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("forebay.toml");
        std::fs::write(&path, file(beyond)).unwrap();
        let outcome = load(&Sources { file: Some(path), ..Sources::default() });
        assert!(outcome.is_err(), "{section}.{} = {beyond} was taken", entry.name);
    }
}

#[test]
fn the_example_names_every_setting_once_in_its_section_and_every_comment_is_a_comment() {
    let text = example();
    let mut section = String::new();
    let mut named = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((name, _)) = line.trim_start_matches('#').split_once(" = ").filter(|(name, _)| !name.starts_with(' ')) {
            named.push(format!("{section}.{name}"));
        } else {
            assert!(line.starts_with("# ") || line == "#", "{line:?} is neither a setting nor a comment");
        }
    }
    let declared: Vec<String> = every_setting().into_iter().map(|(section, entry)| format!("{section}.{}", entry.name)).collect();
    assert_eq!(named, declared);
}

#[test]
fn switching_on_all_that_the_example_hints_at_gives_settings_of_the_right_types() {
    let text: String = example()
        .lines()
        .map(|line| match line.strip_prefix('#').filter(|rest| !rest.starts_with(' ') && rest.contains(" = ")) {
            Some(setting) => format!("{setting}\n"),
            None => format!("{line}\n"),
        })
        .collect();
    let (config, problems) = read_from(&text, &[], &[]);
    assert_eq!(problems, Vec::<String>::new());
    assert_ne!(config, Config::default());
    let (again, problems) = read_from(&show(&Config { auth: Auth::default(), ..config.clone() }), &[], &[]);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(again.disk, config.disk, "what is shown is read back as it was");
}

#[test]
fn empty_texts_where_a_path_or_secret_belongs_are_refused() {
    for (section, entry) in every_setting().into_iter().filter(|(_, entry)| entry.sample == "\"/path\"") {
        if entry.value.is_some() && section != "node" {
            continue;
        }
        let (_, problems) = read_from(&format!("[{section}]\n{} = \"\"\n", entry.name), &[], &[]);
        assert_eq!(problems.len(), 1, "{section}.{}", entry.name);
    }
    let (_, problems) = read_from("[auth]\nadmin_token = \"\"\n", &[], &[]);
    assert!(problems[0].starts_with("auth.admin_token: an empty secret is none"), "{problems:?}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let refused = load(&Sources { file: Some(PathBuf::from("/nowhere/forebay.toml")), ..Sources::default() }).unwrap_err();
    assert!(refused.to_string().contains("/nowhere/forebay.toml: cannot be read"), "{refused}");
}
