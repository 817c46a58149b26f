//! The Forebay service.

pub mod config;
