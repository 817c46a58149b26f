//! The port: HTTP/1.1 and HTTP/2 with and without TLS, and tokens on every route that the contract names.

use super::support::{Api, Node, Place, Spec, install_crypto};
use bytes::Bytes;
use http::Version;
use reqwest::{Certificate, Client, ClientBuilder, Method};
use serde_json::{Value, json};
use std::path::Path;

const ADMIN: &str = "admin-token-of-the-tests";

struct Secured {
    node: Node,
    certificate: Certificate,
}

async fn start(root: &Path) -> Secured {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (certificate, key) = (root.join("certificate.pem"), root.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let spec = Spec::new(&root.join("node")).set(format!("auth.admin_token={ADMIN}")).set("http.protect_metrics=true");
    let spec = spec.set(format!("tls.certificate={}", certificate.display())).set(format!("tls.key={}", key.display()));
    let certificate = Certificate::from_pem(made.cert.pem().as_bytes()).expect("a certificate");
    Secured { node: spec.start().await, certificate }
}

impl Secured {
    fn api(&self, of: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Api {
        install_crypto();
        let builder = Client::builder().no_proxy().tls_certs_only([self.certificate.clone()]);
        Api { http: of(builder).build().expect("a client"), ..self.node.api.clone() }
    }
}

/// Writes a partition and reads it back, every request in `version`.
async fn check_session(api: &Api, version: Version, job: &'static str) {
    let place = Place { job, dataset: "stage-1", partition: 0 };
    let bytes = Bytes::from_static(b"over the wire");
    let answers = [
        api.put(&format!("/v1/jobs/{job}"), &json!({"owner_nonce": "one"})).await,
        api.put(&format!("/v1/jobs/{job}/datasets/stage-1"), &json!({"kind": "blocking", "subpartitions": 1})).await,
        api.open(&place, 0, 0).await,
        api.append(&place, "0.0", 0, 0, bytes.clone()).await,
        api.seal(&place, "0.0").await,
        api.read(&place, 0).await,
    ];
    for answer in answers.map(|answer| answer.expect("answered")) {
        assert!(answer.is_success(), "{}", answer.text());
        assert_eq!(answer.version, version);
    }
    assert_eq!(api.read(&place, 0).await.expect("answered").body, bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_speaks_http_1_and_http_2_as_the_client_asks() {
    let root = tempfile::tempdir().expect("a directory");
    let secured = start(root.path()).await;
    assert!(secured.node.api.url.starts_with("https://"));
    check_session(&secured.api(|builder| builder).with_token(ADMIN), Version::HTTP_2, "by-alpn").await;
    check_session(&secured.api(ClientBuilder::http1_only).with_token(ADMIN), Version::HTTP_11, "http-1").await;
    let stranger = Client::builder().no_proxy().build().expect("a client");
    assert!(stranger.get(format!("{}/healthz", secured.node.api.url)).send().await.is_err(), "an unknown certificate was accepted");
    let plain = secured.node.api.url.replace("https://", "http://");
    assert!(stranger.get(format!("{plain}/healthz")).send().await.is_err(), "plain HTTP was answered on a TLS port");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_port_speaks_http_2_to_clients_that_know_it() {
    let root = tempfile::tempdir().expect("a directory");
    let node = Spec::new(&root.path().join("node")).start().await;
    let http = Client::builder().no_proxy().http2_prior_knowledge().build().expect("a client");
    check_session(&Api { http, ..node.api.clone() }, Version::HTTP_2, "prior").await;
    check_session(&node.api, Version::HTTP_11, "http-1").await;
}

/// One operation of the contract, with a path of job `victim`.
#[derive(Debug)]
struct Operation {
    method: Method,
    path: String,
    is_open: bool,
}

/// Every operation of `openapi.yaml`; open are those that name no security, or may go without.
fn operations() -> Vec<Operation> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.yaml")).expect("the contract");
    let contract: Value = serde_norway::from_str(&text).expect("YAML");
    let mut found = Vec::new();
    for (template, methods) in contract["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            if !["get", "put", "post", "delete", "head", "patch"].contains(&method.as_str()) {
                continue;
            }
            let security = operation.get("security").unwrap_or(&contract["security"]).as_array().expect("security").clone();
            let is_metrics = template == "/metrics";
            let is_open = !is_metrics && (security.is_empty() || security.contains(&json!({})));
            let path = template.replace("{job}", "victim").replace("{dataset}", "stage-1").replace("{attempt}", "0.0");
            let path = path.replace("{partition}", "0").replace("{subpartition}", "0").replace("{checkpoint}", "1");
            let path = path.replace("{plan}", "1").replace("{worker}", "w1");
            assert!(!path.contains('{'), "{path} has a parameter that this test does not know");
            found.push(Operation { method: method.to_uppercase().parse().expect("a method"), path, is_open });
        }
    }
    assert!(found.len() >= 25, "the contract has {} operations", found.len());
    found
}

/// A request that would succeed with the right token, as far as one document can do that.
async fn ask(api: &Api, operation: &Operation, authorization: Option<&str>, query: &str) -> (u16, String) {
    let mut request = api.request(operation.method.clone(), &format!("{}{query}", operation.path));
    request = request.header("Forebay-Node-Life", &api.life).header("Forebay-Job-Epoch", "1");
    if let Some(authorization) = authorization {
        request = request.header("Authorization", authorization);
    }
    let answer = api.send(request).await.expect("answered");
    (answer.status, answer.text())
}

async fn victim(admin: &Api) -> Value {
    let place = Place { job: "victim", dataset: "stage-1", partition: 0 };
    let mut seen = Vec::new();
    for path in ["/v1/jobs/victim", "/v1/jobs/victim/datasets/stage-1", place.path().as_str(), "/readyz"] {
        let mut document = admin.get(path).await.expect("answered").ok();
        if let Some(members) = document.as_object_mut() {
            members.remove("lease_remaining_ms");
        }
        seen.push(document);
    }
    seen.push(json!(admin.read(&place, 0).await.expect("answered").text()));
    Value::Array(seen)
}

fn assert_tells_nothing(operation: &Operation, text: &str, root: &Path, tokens: &[&str]) {
    let root = root.display().to_string();
    assert!(!text.contains(&root) && !text.contains("/src/"), "{operation:?} names a path: {text}");
    assert!(tokens.iter().all(|token| !text.contains(token)), "{operation:?} names a token: {text}");
}

/// J3, J4.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_wants_a_token_and_the_one_of_its_own_job() {
    let root = tempfile::tempdir().expect("a directory");
    let secured = start(root.path()).await;
    let api = secured.api(|builder| builder);
    let admin = api.with_token(ADMIN);
    check_session(&admin, Version::HTTP_2, "victim").await;
    let attacker = admin.create_job("attacker").await["token"].as_str().expect("a token").to_owned();
    let before = victim(&admin).await;
    let (bearer, basic) = (format!("Bearer {attacker}"), format!("Basic {ADMIN}"));
    let in_query = format!("?token={ADMIN}");
    let without: [(Option<&str>, &str); 6] =
        [(None, ""), (Some("Bearer "), ""), (Some("Bearer"), ""), (Some(&basic), ""), (Some(ADMIN), ""), (None, &in_query)];
    for operation in operations() {
        let tokens = [attacker.as_str(), ADMIN];
        if operation.is_open {
            assert!(ask(&api, &operation, None, "").await.0 < 400, "{operation:?}");
            continue;
        }
        for (authorization, query) in without {
            let (status, text) = ask(&api, &operation, authorization, query).await;
            assert_eq!(status, 401, "{operation:?} with {authorization:?}{query}: {text}");
            assert_tells_nothing(&operation, &text, root.path(), &tokens);
        }
        for (wrong, wanted) in [(bearer.as_str(), 403), ("Bearer never-was-a-token-of-anyone", 401)] {
            let (status, text) = ask(&api, &operation, Some(wrong), "").await;
            assert_eq!(status, wanted, "{operation:?}: {text}");
            assert_tells_nothing(&operation, &text, root.path(), &tokens);
            // Whether the job exists is not told to those whom it does not concern.
            let absent = Operation { method: operation.method.clone(), path: operation.path.replace("victim", "nobody"), is_open: false };
            assert_eq!(ask(&api, &absent, Some(wrong), "").await, (status, text), "{operation:?}");
        }
    }
    assert_eq!(victim(&admin).await, before, "the victim was changed");
}
