//! Durable partitions in an object store.
