//! Rust client for Forebay.
