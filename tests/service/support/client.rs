//! A client that speaks plain HTTP and holds every answer against `openapi.yaml`.

use super::openapi::Contract;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use serde_json::Value;

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    /// The document; fails when it is none.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("not a document: {self:?}"))
    }

    /// The code of a problem; empty for anything else.
    pub(crate) fn code(&self) -> String {
        let document: Value = serde_json::from_slice(&self.bytes).unwrap_or_default();
        document["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The document of a success; fails with the answer otherwise.
    #[track_caller]
    pub(crate) fn success(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, String::from_utf8_lossy(&self.bytes));
        if self.bytes.is_empty() { Value::Null } else { serde_json::from_slice(&self.bytes).unwrap_or_default() }
    }

    /// Fails unless this is a problem with the code.
    #[track_caller]
    pub(crate) fn refused(&self, code: &str) -> Value {
        assert_eq!(self.code(), code, "{} {}", self.status, String::from_utf8_lossy(&self.bytes));
        self.json()
    }
}

/// A client of one node.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    headers: HeaderMap,
}

impl Client {
    pub(crate) fn new(url: String, token: Option<String>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        let http = builder.timeout(std::time::Duration::from_secs(60)).build().expect("a client");
        Self { http, url, token, headers: HeaderMap::new() }
    }

    /// The same client speaking HTTP/2 without TLS.
    pub(crate) fn over_http2(mut self) -> Self {
        self.http = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
        self
    }

    /// The same client with another header on every request.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header value"));
        self
    }

    pub(crate) fn without(mut self, name: &'static str) -> Self {
        self.headers.remove(name);
        self
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let builder = self.http.request(method, format!("{}{path}", self.url)).headers(self.headers.clone());
        match &self.token {
            Some(token) => builder.bearer_auth(token),
            None => builder,
        }
    }

    /// Sends, reads to the end, and checks the answer against the contract.
    pub(crate) async fn send(&self, method: &str, path: &str, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
        let answer = Answer { status: status.as_u16(), headers, bytes: bytes.to_vec() };
        if status != StatusCode::NOT_FOUND || answer.code() != "unknown_route" {
            Contract::shared().check(method, path, &answer);
        }
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, self.request("GET", path)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, self.request("DELETE", path)).await
    }

    pub(crate) async fn json(&self, method: &str, path: &str, document: Value) -> Answer {
        self.send(method, path, self.request(method, path).json(&document)).await
    }

    pub(crate) async fn put(&self, path: &str, document: Value) -> Answer {
        self.json("PUT", path, document).await
    }

    pub(crate) async fn post(&self, path: &str, document: Value) -> Answer {
        self.json("POST", path, document).await
    }

    /// Sends a body of another kind.
    pub(crate) async fn body(&self, method: &str, path: &str, media_type: &str, body: impl Into<reqwest::Body>) -> Answer {
        self.send(method, path, self.request(method, path).header("content-type", media_type).body(body)).await
    }
}
