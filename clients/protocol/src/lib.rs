//! Forebay's HTTP contract as Rust types: paths, headers, documents, error codes.
