//! `openapi.yaml` as a program reads it, and answers held against it.

use super::Answer;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::LazyLock;

static SHARED: LazyLock<Contract> = LazyLock::new(Contract::load);
const METHODS: [&str; 5] = ["get", "head", "put", "post", "delete"];

/// The contract.
pub(crate) struct Contract {
    pub(crate) document: Value,
}

impl Contract {
    pub(crate) fn shared() -> &'static Self {
        &SHARED
    }

    fn load() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.yaml");
        let text = std::fs::read_to_string(path).expect("openapi.yaml");
        Self { document: serde_norway::from_str(&text).expect("YAML") }
    }

    /// Every route with its methods in capitals.
    pub(crate) fn operations(&self) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        for (route, item) in self.document["paths"].as_object().expect("paths") {
            let methods = METHODS.iter().filter(|method| item.get(**method).is_some());
            found.extend(methods.map(|method| (route.clone(), method.to_uppercase())));
        }
        found
    }

    /// The operation of a method and a concrete path.
    pub(crate) fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next().unwrap_or_default();
        let fits = |route: &str| {
            let (wanted, given): (Vec<&str>, Vec<&str>) = (route.split('/').collect(), path.split('/').collect());
            wanted.len() == given.len() && wanted.iter().zip(&given).all(|(wanted, given)| wanted.starts_with('{') || wanted == given)
        };
        let routes = self.document["paths"].as_object().expect("paths");
        routes.iter().find(|(route, _)| fits(route)).and_then(|(_, item)| item.get(method.to_lowercase()))
    }

    pub(crate) fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(reference) => self.document.pointer(reference.trim_start_matches('#')).expect("a reference that resolves"),
            None => value,
        }
    }

    pub(crate) fn codes<'a>(&'a self, operation: &'a Value) -> BTreeSet<&'a str> {
        let own = operation["x-forebay-codes"].as_array().into_iter().flatten();
        own.chain(self.document["x-forebay-any-path-codes"].as_array().into_iter().flatten()).filter_map(Value::as_str).collect()
    }

    /// Fails unless the answer is one that the operation documents.
    #[track_caller]
    pub(crate) fn check(&self, method: &str, path: &str, answer: &Answer) {
        let what = format!("{method} {path}: {} {}", answer.status, String::from_utf8_lossy(&answer.bytes[..answer.bytes.len().min(400)]));
        let Some(operation) = self.operation(method, path) else {
            assert_eq!(answer.code(), "method_not_allowed", "{what}: not documented");
            return;
        };
        if answer.code() == "method_not_allowed" {
            panic!("{what}: a documented method");
        }
        let documented = operation["responses"].get(answer.status.to_string());
        let response = self.resolve(documented.unwrap_or_else(|| panic!("{what}: the status is not documented")));
        if answer.status >= 400 && method != "HEAD" {
            assert_eq!(answer.header("content-type"), "application/problem+json", "{what}");
            let code = answer.code();
            assert!(self.codes(operation).contains(code.as_str()), "{what}: the code is not documented");
            assert_eq!(self.document["x-forebay-error-codes"][&code]["status"], answer.status, "{what}");
        }
        for name in ["forebay-node", "forebay-node-life", "x-request-id"] {
            let is_there = answer.headers.contains_key(name);
            assert!(is_there || answer.code() == "starting" || path.ends_with("z"), "{what}: {name} is missing");
        }
        let media_type = answer.header("content-type").split(';').next().unwrap_or_default();
        let Some(contents) = response.get("content").and_then(Value::as_object) else { return };
        if method == "HEAD" || media_type == "text/plain" {
            return;
        }
        let content = contents.get(media_type).unwrap_or_else(|| panic!("{what}: the media type {media_type} is not documented"));
        if media_type.ends_with("json") {
            self.validate(&content["schema"], &answer.json(), &what);
        }
    }

    /// Fails unless the value has the form of the schema. Members that the schema does not name are
    /// a failure too: what is served is documented.
    #[track_caller]
    pub(crate) fn validate(&self, schema: &Value, value: &Value, at: &str) {
        let schema = self.resolve(schema);
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array) {
            assert!(allowed.contains(value), "{at}: {value} is none of {allowed:?}");
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => self.validate_object(schema, value.as_object().unwrap_or_else(|| panic!("{at}: not an object")), at),
            Some("array") => {
                let items = value.as_array().unwrap_or_else(|| panic!("{at}: not a list"));
                for (index, item) in items.iter().enumerate() {
                    self.validate(&schema["items"], item, &format!("{at}[{index}]"));
                }
            }
            Some("string") => assert!(value.is_string(), "{at}: not a text: {value}"),
            Some("boolean") => assert!(value.is_boolean(), "{at}: not a boolean: {value}"),
            Some("integer") => {
                let number = value.as_u64().unwrap_or_else(|| panic!("{at}: not a number: {value}"));
                assert!(schema.get("maximum").and_then(Value::as_u64).is_none_or(|most| number <= most), "{at}: {number} is too large");
            }
            other => panic!("{at}: the schema has type {other:?}"),
        }
    }

    #[track_caller]
    fn validate_object(&self, schema: &Value, object: &Map<String, Value>, at: &str) {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        for (name, member) in object {
            let property = properties.get(name).unwrap_or_else(|| panic!("{at}: the member {name} is not documented"));
            self.validate(property, member, &format!("{at}.{name}"));
        }
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            assert!(object.contains_key(name), "{at}: the member {name} is missing");
        }
    }
}
