//! The Forebay service.

mod demo;
