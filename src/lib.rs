//! The Forebay service.
