//! Claims about the service, one per test.
