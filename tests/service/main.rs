//! The service from outside: a real server on a free port, clients that speak plain HTTP. Nothing
//! here shares a document type with the service.

#![expect(clippy::disallowed_methods, reason = "tests spawn and wait for what they start")]

#[cfg(test)]
mod blackbox;
#[cfg(test)]
mod client_live;
#[cfg(test)]
mod conformance_http;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod support;
