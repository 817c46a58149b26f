//! The Forebay service.

mod demo;
pub mod http;
pub mod server;
pub mod service;
pub mod shutdown;

#[cfg(test)]
mod test_time;
