//! One function per operation of `openapi.yaml`: extract, call, map.

pub(super) mod append;
pub(super) mod availability;
pub(super) mod datasets;
pub(super) mod events;
pub(super) mod fetch;
pub(super) mod frames;
pub(super) mod jobs;
pub(super) mod members;
pub(super) mod node;
pub(super) mod partitions;
pub(super) mod read;
pub(super) mod recovery;
pub(super) mod seal;
