//! Claims about the configuration as a whole; `keys` has those that hold for every setting by name.

mod keys;

use crate::config::schema::{Form, Part, Section};
use crate::config::*;
use std::collections::BTreeSet;
use toml::{Table, Value};

fn load_text(text: &str, environment: &[(&str, &str)], flags: &[(&str, Value)]) -> Result<Config, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("forebay.toml");
    std::fs::write(&path, text).unwrap();
    load(&Sources {
        file: Some(path),
        environment: environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        flags: flags.iter().map(|(path, value)| ((*path).to_owned(), value.clone())).collect(),
    })
}

fn problems_of(text: &str) -> Vec<String> {
    load_text(text, &[], &[]).err().map(|error| error.problems).unwrap_or_default()
}

fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    Config::default().parts("", &mut parts);
    parts
}

#[test]
fn without_a_file_the_node_is_on_loopback_and_opts_in_to_a_directory() {
    let config = load(&Sources::default()).unwrap();
    assert_eq!(config, Config::embedded());
    assert!(config.http.listen.ip().is_loopback());
    assert!(!config.auth.is_on() && !config.tls.is_on());
    assert_eq!((config.object.kind, config.object.directory.opt_in), (ObjectKind::Directory, true));
}

#[test]
fn an_empty_file_is_the_defaults_without_durable() {
    let config = load_text("", &[], &[]).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.object.kind, ObjectKind::None);
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let text = "[http]\nlisten = \"127.0.0.1:1\"\nmax_requests = 1\n[lease]\ndefault = \"11s\"\n";
    let environment = [("FOREBAY_HTTP__LISTEN", "127.0.0.1:2"), ("FOREBAY_HTTP__MAX_REQUESTS", "2")];
    let flags = [("http.listen", Value::String("127.0.0.1:3".to_owned()))];
    let config = load_text(text, &environment, &flags).unwrap();
    assert_eq!(config.http.listen.port(), 3);
    assert_eq!(config.http.max_requests, 2);
    assert_eq!(config.lease.default, TimeSpan::secs(11));
}

#[test]
fn variables_that_are_no_settings_are_left_alone() {
    let config = load_text("", &[("FOREBAY_URL", "x"), ("FOREBAY_TOKEN", "x"), ("FOREBAY_LONG", "1"), ("HOME", "/")], &[]);
    assert_eq!(config, Ok(Config::default()));
}

#[test]
fn lists_in_the_environment_are_separated_by_commas() {
    let config = load_text("", &[("FOREBAY_DISK__DIRECTORIES", "/a, /b"), ("FOREBAY_OBJECT__S3__BUCKET", "b")], &[]).unwrap();
    assert_eq!(config.disk_directories(), [PathBuf::from("/a"), PathBuf::from("/b")]);
    assert_eq!(config.object.s3.bucket, "b");
}

#[test]
fn misspelt_keys_are_named_with_their_neighbour_wherever_they_stand() {
    let text = "[http]\nlisen = \"127.0.0.1:1\"\n[htpp]\nx = 1\n[object.s3]\nbuket = \"b\"\n";
    let found = problems_of(text).join("\n");
    for expected in ["http.lisen: there is no such setting; did you mean listen?", "did you mean http?", "did you mean bucket?"] {
        assert!(found.contains(expected), "{expected} is not in:\n{found}");
    }
    let found = load_text("", &[("FOREBAY_HTTP__LISEN", "x"), ("FOREBAY_HTPP__LISTEN", "x")], &[]).unwrap_err().to_string();
    assert!(found.contains("FOREBAY_HTTP__LISEN: there is no such setting; did you mean listen?"), "{found}");
    assert!(found.contains("FOREBAY_HTPP__LISTEN: there is no section htpp; did you mean http?"), "{found}");
}

#[test]
fn every_problem_is_reported_at_once() {
    let text = "[http]\nlisten = 1\nbody_stall = 30\n[lease]\nmin = \"2h\"\ndefault = \"1h\"\n[memory]\nbudget = \"3 apples\"\n[tls]\nkey = \"/k\"\n";
    let found = problems_of(text);
    for expected in ["http.listen", "http.body_stall", "lease.min", "memory.budget", "tls.certificate and tls.key"] {
        assert!(found.iter().any(|problem| problem.starts_with(expected)), "{expected} is not in {found:?}");
    }
}

#[test]
fn a_file_that_is_not_toml_is_refused_by_line_without_its_text() {
    let found = problems_of("[auth]\nadmin_token = MARKER-without-quotes\n").join("\n");
    assert!(found.contains("line 2") && !found.contains("MARKER"), "{found}");
}

#[test]
fn settings_that_do_not_fit_together_are_refused() {
    let cases = [
        ("[lease]\ndefault = \"500ms\"", "lease.min"),
        ("[lease]\nmax = \"1m\"", "lease.default"),
        ("[http]\nread_stall = \"0s\"", "http.read_stall"),
        ("[http]\nmax_requests = 0", "http.max_requests"),
        ("[http]\nmax_connections = 0", "http.max_connections"),
        ("[http]\nmax_streams = 0", "http.max_streams"),
        ("[http]\nmax_connections = 4096", "http.max_connections (4096)"),
        ("[http]\nbudget = \"1MiB\"", "http.max_connections"),
        ("[http]\nstream_window = \"1KiB\"", "http.stream_window"),
        ("[http]\nmax_streams = 4096\nstream_window = \"1MiB\"", "http.max_streams"),
        ("[http]\nmax_document = \"64MiB\"", "the memory for documents"),
        ("[http]\nmax_document = 0", "http.max_document"),
        ("[node]\nmemory = \"16MiB\"", "http.max_connections"),
        ("[limits]\nread_budget = \"1MiB\"", "limits.read_budget"),
        ("[limits]\nread_patience = \"0s\"", "limits.read_patience"),
        ("[limits]\nread_patience = \"5m\"", "limits.read_patience"),
        ("[limits]\natomic_append = \"512KiB\"", "limits.atomic_append"),
        ("[lease]\norphan_grace = \"4m\"", "lease.default"),
        ("[lease]\norphan_interval = \"0s\"", "lease.orphan_interval"),
        ("[node]\nmemory = \"64MiB\"\n[memory]\nbudget = \"64MiB\"", "node.memory"),
        ("[limits]\nmax_frame = \"17MiB\"", "the largest chunk"),
        ("[memory]\nbudget = \"1023KiB\"", "memory.budget"),
        ("[disk]\ndirectories = [\"/x\", \"/x/../x\"]", "disk.directories"),
        ("[disk]\ndirectories = [\"/x\"]\nindex_directory = \"/x/index\"", "disk.directories"),
        ("[memory]\nspill_directories = [\"forebay-data/blocking\"]", "disk.directories"),
        ("[disk]\ndirectories = [\"./forebay-data\"]", "disk.directories"),
        ("[object]\nkind = \"directory\"", "object.directory.opt_in"),
        ("[object]\nkind = \"s3\"", "object.s3.bucket"),
        ("[object]\nkind = \"s3\"\n[object.s3]\nbucket = \"b\"\nendpoint = \"http://h\"", "object.s3.endpoint"),
        ("[object]\nkind = \"s3\"\n[object.s3]\nbucket = \"b\"\naccess_key_id = \"k\"", "object.s3.access_key_id"),
        ("[object]\nprefix = \"a/../b\"", "object.prefix"),
        ("[auth]\nadmin_token = \"short\"", "auth.admin_token"),
        ("[node]\nid = \"a/b\"", "node.id"),
        ("[node]\nadvertised_url = \"node1:7440\"", "node.advertised_url"),
        ("[memory]\nenabled = false\n[disk]\nenabled = false", "memory.enabled"),
    ];
    for (text, setting) in cases {
        let found = problems_of(text);
        assert!(found.iter().any(|problem| problem.starts_with(setting)), "{text:?} gave {found:?}");
    }
}

#[test]
fn an_open_port_needs_tokens_and_tls_or_the_word_insecure() {
    let open = "[http]\nlisten = \"0.0.0.0:1\"\n";
    let token = "[auth]\nadmin_token = \"0123456789abcdef\"\n";
    let tls = "[tls]\ncertificate = \"/c\"\nkey = \"/k\"\n";
    for half in [open.to_owned(), format!("{open}{token}"), format!("{open}{tls}"), open.replace("0.0.0.0", "[::]")] {
        assert!(problems_of(&half).iter().any(|problem| problem.starts_with("http.listen")), "{half}");
    }
    assert_eq!(problems_of(&format!("{open}{token}{tls}")), Vec::<String>::new());
    assert_eq!(problems_of(&format!("{open}[auth]\ninsecure = true\n")), Vec::<String>::new());
    for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1"] {
        assert_eq!(problems_of(&format!("[http]\nlisten = \"{loopback}\"\n")), Vec::<String>::new());
    }
}

#[test]
fn the_example_is_complete_and_is_the_defaults() {
    let text = example();
    assert_eq!(load_text(&text, &[], &[]), Ok(Config::default()));
    for part in parts() {
        assert!(part.path.is_empty() || text.contains(&format!("\n[{}]\n", part.path)), "{} is missing", part.path);
        for entry in part.entries {
            assert!(text.contains(&format!("\n{} = ", entry.name)) || text.contains(&format!("\n#{} = ", entry.name)), "{}", entry.name);
            assert!(!entry.docs.is_empty(), "{}.{} has no reason", part.path, entry.name);
        }
    }
}

#[test]
fn what_the_example_only_hints_at_can_be_switched_on_as_it_stands() {
    for part in parts() {
        for entry in part.entries.iter().filter(|entry| entry.value.is_none()) {
            let text = format!("[{}]\n{} = {}\n", part.path, entry.name, entry.sample);
            let table: Table = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            let mut problems = Vec::new();
            Config::read(table, "", &mut problems);
            assert_eq!(problems, Vec::<String>::new(), "{text}");
        }
    }
}

#[test]
fn secrets_are_in_no_printed_form() {
    let text = "[auth]\nadmin_token = \"MARKER1-0123456789\"\n[object.s3]\naccess_key_id = \"id\"\nsecret_access_key = \"MARKER2\"\n\
                session_token = \"MARKER3\"\n[object.azure]\naccess_key = \"MARKER4\"\nsas = \"sig=MARKER5\"\n";
    let config = load_text(text, &[], &[]).unwrap();
    let shown = show(&config);
    assert!(!shown.contains("MARKER"), "{shown}");
    assert_eq!(shown.matches(REDACTED).count(), 5, "{shown}");
    assert!(!format!("{config:?} {config:#?}").contains("MARKER"));
}

#[test]
fn no_message_repeats_a_secret_that_was_refused() {
    for text in
        ["[auth]\nadmin_token = \"MARKER\"", "[auth]\nadmin_token = [\"MARKER\"]", "[object.s3]\nsecret_access_key = { x = \"MARKER\" }"]
    {
        let found = problems_of(text);
        assert!(!found.is_empty() && !found.join("\n").contains("MARKER"), "{found:?}");
    }
}

#[test]
fn what_is_shown_is_read_back_as_it_was() {
    let text = "[http]\nlisten = \"[::1]:9\"\nbody_stall = \"1m30s\"\n[disk]\ndirectories = [\"/a b\", \"/c\\\"d\"]\nsync = \"data\"\n[node]\nid = \"n1\"\n";
    let config = load_text(text, &[], &[]).unwrap();
    assert_eq!(load_text(&show(&config), &[], &[]), Ok(config));
}

/// M4: a time option set to 2 s is 2 s, and a size of 8 MiB is 8 MiB, for each of them by name, from
/// the file and from the environment.
#[test]
fn every_time_and_size_has_its_unit() {
    let (mut n_times, mut n_sizes) = (0, 0);
    for part in parts() {
        for entry in part.entries.iter().filter(|entry| entry.form == Form::Text) {
            let sample = entry.value.clone().unwrap_or_else(|| entry.sample.to_owned());
            let inner = sample.trim_matches('"');
            let (written, is_time) = match (inner.parse::<TimeSpan>(), inner.parse::<ByteSize>()) {
                (Ok(_), _) => ("2s", true),
                (_, Ok(_)) => ("8MiB", false),
                _ => continue,
            };
            let path = format!("{}.{}", part.path, entry.name);
            let table: Table = format!("[{}]\n{} = \"{written}\"\n", part.path, entry.name).parse().unwrap();
            let mut problems = Vec::new();
            let config = Config::read(table, "", &mut problems);
            assert_eq!(problems, Vec::<String>::new(), "{path}");
            assert!(show(&config).contains(&format!("{} = \"{written}\"", entry.name)), "{path} was not taken as {written}");
            let bare: Table = format!("[{}]\n{} = 2\n", part.path, entry.name).parse().unwrap();
            Config::read(bare, "", &mut problems);
            assert_eq!(problems.is_empty(), !is_time, "{path}: a plain number is a size, never a time");
            if is_time { n_times += 1 } else { n_sizes += 1 }
        }
    }
    assert!(n_times > 20 && n_sizes > 10, "{n_times} times and {n_sizes} sizes were looked at");
}

#[test]
fn names_are_unique_within_their_section() {
    for part in parts() {
        let names: BTreeSet<_> = part.entries.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), part.entries.len(), "{}", part.path);
    }
}

#[test]
fn a_token_file_gives_its_first_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, "0123456789abcdef\nmore\n").unwrap();
    let mut config = Config::default();
    config.auth.admin_token_file = Some(path.clone());
    assert_eq!(config.admin_token().unwrap().map(|token| token.reveal().to_owned()).as_deref(), Some("0123456789abcdef"));
    for bad in ["", "\n", "short\n", "has blanks in its sixteen\n"] {
        std::fs::write(&path, bad).unwrap();
        assert!(config.admin_token().is_err(), "{bad:?}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(config.admin_token().unwrap_err().to_string().contains("auth.admin_token_file"));
}

#[test]
fn the_deployed_files_are_accepted() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/config");
    let load_file = |name: &str| load(&Sources { file: Some(deploy.join(name)), ..Sources::default() }).unwrap();
    let prod = load_file("prod.toml");
    assert!(prod.auth.is_on() && prod.tls.is_on() && !prod.auth.insecure, "production has tokens and TLS on");
    assert_eq!((prod.disk.sync, prod.object.kind), (Sync::Full, ObjectKind::S3));
    let dev = load_file("dev.toml");
    assert!(dev.http.listen.ip().is_loopback());
}
