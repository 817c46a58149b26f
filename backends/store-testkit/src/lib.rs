//! One conformance suite, reference model and fault tools for every partition store.
