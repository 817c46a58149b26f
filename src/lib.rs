//! The Forebay service.

pub mod service;
