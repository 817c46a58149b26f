//! The Forebay service.

mod demo;
pub mod service;
