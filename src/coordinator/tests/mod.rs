//! Claims about a coordinator: without HTTP, with time that is moved by hand.

mod crash;
mod driver;
mod members;
mod plans;

use super::*;
use crate::recovery::graph_spec::{DatasetProperties, DatasetSpec, GraphSpec, GroupSpec, Keeps, Pattern, VertexSpec};
use crate::recovery::policy::{Determinism, Strategy};
use crate::test_time::hasten;
use bytes::Bytes;
use driver::{Driver, MemoryCatalog};
use store_api::clock::ManualClock;
use store_api::{
    AttemptId, CatalogEntry, ConsumerId, DatasetId, Expect, JobEpoch, JobIncarnation, NodeId, NodeLife, Operation, PartitionId, StoreError,
    Version, WorkerId,
};
