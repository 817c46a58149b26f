//! `openapi.yaml`, the router and the tables of the protocol say the same, in both directions.

use crate::support::openapi::Contract;
use crate::support::{Client, KINDS, Node, Scenario};
use forebay::http::{Access, ROUTES, access_of};
use forebay_protocol::headers::END_REASONS;
use forebay_protocol::{ErrorCode, paths};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn names_of(value: &Value) -> BTreeSet<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn every_route_is_documented_and_every_documented_route_is_served() {
    let served = ROUTES.iter().flat_map(|(route, methods)| methods.iter().map(|method| ((*route).to_owned(), (*method).to_owned())));
    assert_eq!(served.collect::<BTreeSet<_>>(), Contract::shared().operations());
    let routes: BTreeSet<&str> = ROUTES.iter().map(|(route, _)| *route).collect();
    assert_eq!(routes, BTreeSet::from(paths::ALL));
}

#[test]
fn every_code_is_documented_with_its_status_and_every_documented_code_exists() {
    let document = &Contract::shared().document;
    let documented = document["x-forebay-error-codes"].as_object().expect("codes");
    assert_eq!(documented.len(), ErrorCode::ALL.len());
    for code in ErrorCode::ALL {
        let entry = &documented[code.as_str()];
        assert_eq!(entry["status"], code.status(), "{code}");
        assert_eq!(entry["retryable"], serde_json::to_value(code.retryable()).expect("a name"), "{code}");
    }
    let listed = names_of(&document["components"]["schemas"]["ErrorCode"]["enum"]);
    assert_eq!(listed, ErrorCode::ALL.iter().map(|code| code.as_str()).collect());
}

#[test]
fn the_statuses_of_an_operation_are_those_of_its_codes_and_every_code_is_used() {
    let contract = Contract::shared();
    let mut used = names_of(&contract.document["x-forebay-any-path-codes"]);
    for (route, method) in contract.operations() {
        let operation = contract.operation(&method, &route).expect("an operation");
        let codes = names_of(&operation["x-forebay-codes"]);
        let status = |code: &&str| contract.document["x-forebay-error-codes"][*code]["status"].to_string();
        let of_codes: BTreeSet<String> = codes.iter().map(status).collect();
        let responses = operation["responses"].as_object().expect("responses").keys().filter(|status| status.as_str() >= "400");
        assert_eq!(of_codes, responses.cloned().collect(), "{method} {route}");
        used.extend(codes);
    }
    assert_eq!(used, ErrorCode::ALL.iter().map(|code| code.as_str()).collect());
}

#[test]
fn the_tokens_that_are_documented_are_those_that_are_asked_for() {
    let contract = Contract::shared();
    for (route, method) in contract.operations() {
        let operation = contract.operation(&method, &route).expect("an operation");
        let security = operation.get("security").unwrap_or(&contract.document["security"]);
        let schemes: Vec<&str> =
            security.as_array().expect("a list").iter().filter_map(|one| Some(one.as_object()?.keys().next()?.as_str())).collect();
        let method = http::Method::from_bytes(method.as_bytes()).expect("a method");
        let expected: &[&str] = match access_of(&method, &route, true) {
            Access::Open => &[],
            Access::Admin => &["admin"],
            Access::PutJob | Access::Job => &["admin", "job"],
        };
        assert_eq!(schemes, expected, "{method} {route}");
    }
    assert_eq!(access_of(&http::Method::GET, "/v1/anything-new", false), Access::Admin, "a new route is closed");
}

#[test]
fn every_example_of_a_request_has_the_form_of_its_schema() {
    let contract = Contract::shared();
    let mut n_examples = 0;
    for (route, method) in contract.operations() {
        let operation = contract.operation(&method, &route).expect("an operation");
        let Some(content) = operation.pointer("/requestBody/content/application~1json") else { continue };
        contract.validate(&content["schema"], &content["example"], &format!("{method} {route}"));
        n_examples += 1;
    }
    assert_eq!(n_examples, 19);
}

#[test]
fn every_reason_why_a_body_ends_is_documented() {
    let schema = &Contract::shared().document["components"]["headers"]["Forebay-End-Reason"]["schema"];
    assert_eq!(names_of(&schema["enum"]), BTreeSet::from(END_REASONS));
}

#[test]
fn one_default_port_is_named_everywhere() {
    let port = forebay::config::DEFAULT_PORT;
    assert_eq!(forebay::server::ServerConfig::default().listen.port(), port);
    assert_eq!(forebay::config::Http::default().listen.port(), port);
    assert_eq!(Contract::shared().document["servers"][0]["url"], format!("http://127.0.0.1:{port}"));
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages =
        ["README.md", "deploy/README.md", "deploy/compose.yaml", "deploy/Dockerfile", "deploy/config/prod.toml", "clients/rust/README.md"];
    let examples = ["put_get", "shuffle", "tail"].map(|name| format!("clients/rust/examples/{name}.rs"));
    for page in pages.map(str::to_owned).into_iter().chain(examples).chain(["clients/rust/src/lib.rs".to_owned()]) {
        let text = std::fs::read_to_string(root.join(&page)).expect("a page of the project");
        assert!(text.contains(&port.to_string()), "{page} names another port");
    }
}

fn concrete(route: &str) -> String {
    let ids = [
        ("{job}", "q1"),
        ("{dataset}", "d"),
        ("{subpartition}", "0"),
        ("{partition}", "0"),
        ("{attempt}", "0.0"),
        ("{checkpoint}", "1"),
        ("{plan}", "1"),
        ("{worker}", "w1"),
    ];
    ids.iter().fold(route.to_owned(), |path, (name, id)| path.replace(name, id))
}

#[tokio::test]
async fn every_documented_operation_answers_and_every_other_method_is_refused_with_what_is_allowed() {
    let node = Node::start().await;
    let client = node.client();
    for (route, methods) in ROUTES {
        let path = concrete(route);
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
            let answer = client.send(method, &path, client.request(method, &path)).await;
            assert_ne!(answer.code(), "unknown_route", "{method} {path}");
            if methods.contains(&method) {
                assert_ne!(answer.status, 405, "{method} {path}");
                assert!(answer.status != 500, "{method} {path}: {}", String::from_utf8_lossy(&answer.bytes));
            } else {
                answer.refused("method_not_allowed");
                let allowed: BTreeSet<&str> = answer.header("allow").split(',').map(str::trim).collect();
                let expected = methods.iter().copied().chain(methods.contains(&"GET").then_some("HEAD")).collect();
                assert_eq!(allowed, expected, "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn a_path_that_is_not_documented_is_an_unknown_route() {
    let node = Node::start().await;
    for path in ["/", "/v1", "/v1/jobs/", "/v2/jobs", "/v1/jobs/a/nothing", "/healthz/x", "//v1/jobs"] {
        let answer = node.client().get(path).await;
        answer.refused("unknown_route");
        assert_eq!(answer.status, 404);
    }
}

#[tokio::test]
async fn a_node_that_is_not_ready_says_so_and_is_alive() {
    let node = Node::start_with(crate::support::NodeOptions { is_started: false, ..Default::default() }).await;
    let client = node.client();
    assert_eq!(client.get("/healthz").await.success()["status"], "ok");
    for path in ["/readyz", "/v1/node", "/v1/jobs", "/v1/jobs/q1"] {
        let answer = client.get(path).await;
        answer.refused("starting");
        assert!(!answer.header("retry-after").is_empty());
    }
}

#[tokio::test]
async fn members_and_parameters_that_are_not_documented_are_refused_everywhere() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    s.open(0, "0.0").await.success();
    let contract = Contract::shared();
    for (route, method) in contract.operations() {
        let operation = contract.operation(&method, &route).expect("an operation");
        let path = concrete(&route).replace("q1", &s.job);
        if operation.pointer("/requestBody/content/application~1json").is_some() {
            let answer = s.client.json(&method, &path, json!({ "misspelt": 1 })).await;
            answer.refused("bad_request");
        }
        let has_query = operation["parameters"].as_array().into_iter().flatten().any(|one| contract.resolve(one)["in"] == "query");
        if has_query && method != "HEAD" {
            let path = format!("{path}?misspelt=1");
            let request = s.client.request(&method, &path).header("content-type", "application/octet-stream");
            s.client.send(&method, &path, request).await.refused("bad_request");
        }
    }
}

#[tokio::test]
async fn an_append_takes_its_bytes_whatever_they_are_called_except_frames() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let named =
            ["application/octet-stream", "application/x-www-form-urlencoded", "text/plain; charset=utf-8", "application/json", "nonsense"];
        for (offset, name) in named.iter().enumerate() {
            let path = format!("{}?offset={offset}", s.append_path(0, "0.0", 0));
            s.client.body("PUT", &path, name, "x").await.success();
        }
        let path = format!("{}?offset=5", s.append_path(0, "0.0", 0));
        s.client.send("PUT", &path, s.client.request("PUT", &path).body("y")).await.success();
        let path = format!("{}?offset=6", s.append_path(0, "0.0", 0));
        for frames in ["application/vnd.forebay.frames", "Application/vnd.Forebay.frames; v=1"] {
            s.client.body("PUT", &path, frames, "z").await.refused("unsupported_media_type");
        }
        for bytes in ["application/octet-stream", "application/x-www-form-urlencoded"] {
            let path = format!("{}/frames", s.attempt(0, "0.0"));
            s.client.body("POST", &path, bytes, "z").await.refused("unsupported_media_type");
        }
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 0).await.bytes, b"xxxxxy", "{kind:?}");
    }
}

#[tokio::test]
async fn a_document_of_another_media_type_is_refused() {
    let node = Node::start().await;
    let client: Client = node.client();
    let answer = client.body("PUT", "/v1/jobs/q1", "text/plain", "{}").await;
    answer.refused("unsupported_media_type");
    let answer = client.body("PUT", "/v1/jobs/q1", "application/json; charset=utf-8", "{}").await;
    answer.success();
}
