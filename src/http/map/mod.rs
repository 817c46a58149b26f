//! The service's values as documents of the protocol, and documents as calls. Values that cannot
//! be meant are refused here; what needs the job's state is the service's to refuse.

pub(super) mod recovery;

use super::error::{Answer, Refusal};
use crate::service as domain;
use forebay_protocol::{datasets, events, jobs, node, partitions, reads};
use std::fmt::Display;
use std::time::Duration;
use store_api::table::SubpartitionTable;
use store_api::{
    Arbitration, AttemptId, AttemptState, ClassAchieved, ConsumerId, Crc32c, DatasetId, DatasetKind, LossCause, Offset, PartitionId,
    ReleaseReport, Retention, StoreClass, SubpartitionIndex,
};

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn named<T, E: Display>(name: &str, parsed: Result<T, E>) -> Answer<T> {
    parsed.map_err(|error| Refusal::bad_request(format!("{name}: {error}")))
}

fn attempt(text: Option<&str>) -> Answer<Option<AttemptId>> {
    text.map(|text| named("attempt", text.parse())).transpose()
}

const fn class_of(kind: datasets::Kind) -> StoreClass {
    match kind {
        datasets::Kind::Pipelined => StoreClass::Pipelined,
        datasets::Kind::Blocking => StoreClass::Blocking,
        datasets::Kind::Durable => StoreClass::Durable,
    }
}

const fn kind_of(class: StoreClass) -> datasets::Kind {
    match class {
        StoreClass::Pipelined => datasets::Kind::Pipelined,
        StoreClass::Blocking => datasets::Kind::Blocking,
        StoreClass::Durable => datasets::Kind::Durable,
    }
}

const fn retention_of(name: datasets::RetentionName) -> Retention {
    match name {
        datasets::RetentionName::UntilAcknowledged => Retention::UntilAcknowledged,
        datasets::RetentionName::BestEffort => Retention::BestEffort,
        datasets::RetentionName::SinceCheckpoint => Retention::SinceCheckpoint,
    }
}

const fn retention_name(retention: Retention) -> datasets::RetentionName {
    match retention {
        Retention::UntilAcknowledged => datasets::RetentionName::UntilAcknowledged,
        Retention::BestEffort => datasets::RetentionName::BestEffort,
        Retention::SinceCheckpoint => datasets::RetentionName::SinceCheckpoint,
    }
}

pub(super) fn class(class: ClassAchieved) -> partitions::ClassDocument {
    partitions::ClassDocument {
        class: class.class.to_string(),
        durability: class.durability.as_str().to_owned(),
        sync: class.sync.as_str().to_owned(),
        scope: class.scope.as_str().to_owned(),
    }
}

pub(super) fn location(location: &domain::Location) -> partitions::Location {
    partitions::Location { node: location.node.to_string(), life: location.life.to_string(), url: location.url.to_string() }
}

pub(super) fn job_request(request: jobs::JobRequest) -> domain::JobRequest {
    domain::JobRequest {
        owner_nonce: request.owner_nonce,
        token_secret: request.token_secret,
        default_class: request.default_kind.map(class_of),
        default_retention: request.default_retention.map(retention_of),
        lease: request.lease_ms.map(Duration::from_millis),
        quota_bytes: request.quota_bytes,
        take_over: request.take_over,
        fence_writers: request.fence_writers,
    }
}

pub(super) fn job(view: domain::JobView) -> jobs::JobDocument {
    jobs::JobDocument {
        job: view.job.to_string(),
        incarnation: view.incarnation.to_string(),
        epoch: view.epoch.get(),
        default_kind: kind_of(view.default_class),
        lease_ms: as_ms(view.lease),
        lease_remaining_ms: as_ms(view.lease_remaining),
        quota_bytes: view.quota_bytes,
        held: jobs::HeldDocument { memory: view.held.memory, disk: view.held.disk, object: view.held.object },
        n_datasets: view.n_datasets,
        token: view.token,
    }
}

pub(super) fn lease(view: domain::LeaseView) -> jobs::LeaseDocument {
    jobs::LeaseDocument { lease_ms: as_ms(view.lease), lease_remaining_ms: as_ms(view.remaining) }
}

pub(super) const fn release(report: ReleaseReport) -> datasets::ReleaseDocument {
    datasets::ReleaseDocument { n_attempts: report.n_attempts, bytes: report.bytes }
}

pub(super) fn needs(completion: jobs::CheckpointCompletion) -> Answer<Vec<domain::NeedPosition>> {
    // Where producers rewind to is checked for its form and not needed to move floors.
    for rewind in &completion.rewind {
        named("dataset", DatasetId::new(&rewind.dataset))?;
    }
    let need = |need: jobs::NeedPosition| {
        Ok(domain::NeedPosition {
            dataset: named("dataset", DatasetId::new(&need.dataset))?,
            partition: PartitionId::new(need.partition),
            subpartition: SubpartitionIndex::new(need.subpartition),
            group: named("group", ConsumerId::new(&need.group))?,
            offset: Offset::new(need.offset),
        })
    };
    completion.need.into_iter().map(need).collect()
}

pub(super) fn dataset_request(request: datasets::DatasetRequest) -> Answer<domain::DatasetRequest> {
    let groups = request.groups.iter().map(|group| named("group", ConsumerId::new(group))).collect::<Answer<_>>()?;
    Ok(domain::DatasetRequest {
        class: request.kind.map(class_of),
        retention: request.retention.map(retention_of),
        n_partitions: request.partitions,
        n_subpartitions: request.subpartitions,
        is_broadcast: request.broadcast,
        arbitration: match request.arbitration {
            datasets::ArbitrationName::Store => Arbitration::Store,
            datasets::ArbitrationName::Engine => Arbitration::Engine,
        },
        groups,
        content: request.content,
    })
}

pub(super) fn dataset(view: &domain::DatasetView) -> datasets::DatasetDocument {
    let retention = match view.spec.kind {
        DatasetKind::Pipelined(retention) => Some(retention_name(retention)),
        DatasetKind::Blocking | DatasetKind::Durable => None,
    };
    datasets::DatasetDocument {
        job: view.job.to_string(),
        dataset: view.dataset.to_string(),
        kind: kind_of(view.spec.kind.class()),
        retention,
        partitions: view.spec.n_partitions,
        subpartitions: view.spec.n_subpartitions,
        broadcast: view.spec.is_broadcast,
        arbitration: match view.spec.arbitration {
            Arbitration::Store => datasets::ArbitrationName::Store,
            Arbitration::Engine => datasets::ArbitrationName::Engine,
        },
        groups: view.spec.groups.iter().map(ToString::to_string).collect(),
        content: view.content.as_deref().map(str::to_owned),
        class: class(view.class),
        n_sealed: view.n_sealed,
        sealed_bytes: view.sealed_bytes,
    }
}

const fn state_name(state: domain::PartitionState) -> (partitions::PartitionStateName, Option<LossCause>) {
    use domain::PartitionState as S;
    use partitions::PartitionStateName as N;
    match state {
        S::NotWritten => (N::NotWritten, None),
        S::Open => (N::Open, None),
        S::Sealed => (N::Sealed, None),
        S::Released => (N::Released, None),
        S::Expired => (N::Expired, None),
        S::Lost { cause } => (N::Lost, Some(cause)),
        S::Superseded => (N::Superseded, None),
        S::Aborted => (N::Aborted, None),
        S::Unknown => (N::Unknown, None),
    }
}

pub(super) fn partition(view: &domain::PartitionView, lists: bool) -> partitions::PartitionDocument {
    let (state, cause) = state_name(view.state);
    partitions::PartitionDocument {
        partition: view.partition.get(),
        state,
        generation: view.generation,
        manifest: view.manifest.as_ref().map(|view| manifest(view, lists)),
        attempts: view.attempts.iter().map(ToString::to_string).collect(),
        cause: cause.map(|cause| cause.as_str().to_owned()),
    }
}

pub(super) fn manifest(view: &domain::ManifestView, lists: bool) -> partitions::ManifestDocument {
    let held = &view.manifest;
    partitions::ManifestDocument {
        partition: held.attempt.partition.partition.get(),
        attempt: held.attempt.attempt.to_string(),
        total_bytes: held.table.total_bytes(),
        fingerprint: held.table.fingerprint().to_string(),
        checksum: store_api::chunk::CHECKSUM_NAME.to_owned(),
        class: class(held.class),
        location: location(&view.location),
        sealed_at_ms: held.sealed_at_ms,
        subpartitions: lists.then(|| table(&held.table)),
    }
}

/// The lists of a table: of all subpartitions, or of those with bytes when most have none.
fn table(table: &SubpartitionTable) -> partitions::SubpartitionLists {
    let n = table.count() as usize;
    let filled: Vec<(u32, store_api::Digest)> = table.non_empty().map(|(index, digest)| (index.get(), digest)).collect();
    if filled.len() > n / 2 {
        let mut lengths = vec![0; n];
        let mut crcs = vec![0; n];
        for (index, digest) in &filled {
            let at = *index as usize;
            if let (Some(length), Some(crc)) = (lengths.get_mut(at), crcs.get_mut(at)) {
                (*length, *crc) = (digest.length, digest.crc.get());
            }
        }
        return partitions::SubpartitionLists { indices: None, lengths, crcs: Some(crcs) };
    }
    partitions::SubpartitionLists {
        indices: Some(filled.iter().map(|(index, _)| *index).collect()),
        lengths: filled.iter().map(|(_, digest)| digest.length).collect(),
        crcs: Some(filled.iter().map(|(_, digest)| digest.crc.get()).collect()),
    }
}

pub(super) fn page(page: &domain::PartitionPage, lists: bool) -> datasets::PartitionPage {
    datasets::PartitionPage {
        partitions: page.manifests.iter().map(|view| manifest(view, lists)).collect(),
        next_after: page.next_after.map(|(partition, attempt)| format!("{partition}/{attempt}")),
    }
}

/// The cursor of a listing: `{partition}/{attempt}`, or a partition alone for "after all of it".
pub(super) fn page_cursor(text: &str) -> Answer<(PartitionId, AttemptId)> {
    let (partition, attempt) = text.split_once('/').map_or((text, None), |(partition, attempt)| (partition, Some(attempt)));
    let attempt = attempt.map_or(Ok(AttemptId::new(u32::MAX, u32::MAX)), str::parse);
    Ok((named("after", partition.parse())?, named("after", attempt)?))
}

pub(super) fn open_attempt(request: &partitions::OpenAttemptRequest) -> domain::OpenAttempt {
    let start = |start: &partitions::SubpartitionOffset| (SubpartitionIndex::new(start.subpartition), Offset::new(start.offset));
    domain::OpenAttempt {
        generation: request.generation,
        attempt: request.attempt,
        starts: request.starts.iter().map(start).collect(),
        ..domain::OpenAttempt::default()
    }
}

const fn attempt_state(state: AttemptState) -> &'static str {
    match state {
        AttemptState::Open => "open",
        AttemptState::Prepared => "prepared",
        AttemptState::Sealed => "sealed",
        AttemptState::Aborted => "aborted",
        AttemptState::Fenced => "superseded",
        AttemptState::Released => "released",
        AttemptState::Lost => "lost",
    }
}

pub(super) fn attempt_document(view: &domain::AttemptView) -> partitions::AttemptDocument {
    let tail = |(subpartition, offset): &(SubpartitionIndex, Offset)| partitions::SubpartitionOffset {
        subpartition: subpartition.get(),
        offset: offset.get(),
    };
    partitions::AttemptDocument {
        attempt: view.attempt.to_string(),
        state: attempt_state(view.state).to_owned(),
        location: location(&view.location),
        next_sequence: view.next_sequence,
        tails: view.tails.iter().map(tail).collect(),
        max_frame_bytes: view.max_frame_bytes,
        atomic_append_bytes: view.atomic_append_bytes,
    }
}

pub(super) fn stated(request: partitions::SealRequest) -> Option<domain::StatedContent> {
    request.subpartitions.map(|lists| domain::StatedContent {
        indices: lists.indices,
        lengths: lists.lengths,
        crcs: lists.crcs.map(|crcs| crcs.into_iter().map(Crc32c::new).collect()),
    })
}

pub(super) fn seal(reply: &domain::SealReply) -> partitions::SealDocument {
    let (result, view) = match reply {
        domain::SealReply::Won(view) => (partitions::SealResult::Won, view),
        domain::SealReply::OtherWon(view) => (partitions::SealResult::OtherWon, view),
    };
    partitions::SealDocument { result, manifest: manifest(view, true) }
}

/// Counts the items of a batch read out, one per subpartition. Errors: an item that cannot be
/// meant, or more than `max_items`.
pub(super) fn fetch_wants(items: &[reads::FetchItem], max_items: usize) -> Answer<Vec<domain::FetchWant>> {
    let n_items = items.iter().fold(0_u64, |sum, item| sum.saturating_add(u64::from(item.n_subpartitions)));
    if n_items > max_items as u64 {
        return Err(Refusal::too_many(max_items as u64));
    }
    let mut wants = Vec::with_capacity(usize::try_from(n_items).unwrap_or_default());
    for item in items {
        let attempt = attempt(item.attempt.as_deref())?;
        let end = item.subpartition.checked_add(item.n_subpartitions).filter(|_| item.n_subpartitions > 0);
        let end = end.ok_or_else(|| Refusal::bad_request("n_subpartitions must be at least 1 and end below 2^32"))?;
        wants.extend((item.subpartition..end).map(|subpartition| domain::FetchWant {
            partition: PartitionId::new(item.partition),
            subpartition: SubpartitionIndex::new(subpartition),
            start: Offset::new(item.from),
            end: item.to.map(Offset::new),
            attempt,
        }));
    }
    Ok(wants)
}

pub(super) fn positions(positions: &[reads::Position]) -> Answer<Vec<domain::ConsumerPosition>> {
    let position = |position: &reads::Position| {
        Ok(domain::ConsumerPosition {
            partition: PartitionId::new(position.partition),
            subpartition: SubpartitionIndex::new(position.subpartition),
            offset: Offset::new(position.offset),
            attempt: attempt(position.attempt.as_deref())?,
        })
    };
    positions.iter().map(position).collect()
}

pub(super) fn group(name: &str) -> Answer<ConsumerId> {
    named("group", ConsumerId::new(name))
}

pub(super) fn acknowledged(reply: &domain::AcknowledgeReply) -> reads::AcknowledgeDocument {
    let floor = |(partition, subpartition, floor): &(PartitionId, SubpartitionIndex, Offset)| reads::FloorDocument {
        partition: partition.get(),
        subpartition: subpartition.get(),
        floor: floor.get(),
    };
    reads::AcknowledgeDocument { floors: reply.floors.iter().map(floor).collect(), freed_bytes: reply.freed_bytes }
}

pub(super) fn availability_wants(items: &[reads::AvailabilityItem]) -> Answer<Vec<domain::AvailabilityWant>> {
    let want = |item: &reads::AvailabilityItem| {
        let n_partitions = Some(item.n_partitions).filter(|n| *n > 0);
        Ok(domain::AvailabilityWant {
            dataset: named("dataset", DatasetId::new(&item.dataset))?,
            partition: PartitionId::new(item.partition),
            n_partitions: n_partitions.ok_or_else(|| Refusal::bad_request("n_partitions must be at least 1"))?,
            subpartition: item.subpartition.map(SubpartitionIndex::new),
        })
    };
    items.iter().map(want).collect()
}

pub(super) fn availability(view: &domain::AvailabilityView) -> reads::AvailabilityEntry {
    let (state, cause) = state_name(view.state);
    reads::AvailabilityEntry {
        dataset: view.dataset.to_string(),
        partition: view.partition.get(),
        state,
        attempt: view.attempt.map(|attempt| attempt.to_string()),
        total_bytes: view.total_bytes,
        class: view.class.map(class),
        location: view.location.as_ref().map(location),
        floor: view.floor.map(Offset::get),
        end: view.end.map(Offset::get),
        crc: view.crc.map(|crc| crc.to_string()),
        sent: view.sent.map(Offset::get),
        cause: cause.map(|cause| cause.as_str().to_owned()),
    }
}

pub(super) fn event(event: &domain::Event) -> events::EventDocument {
    use domain::EventKind as K;
    let (kind, cause) = match event.kind {
        K::Sealed => (events::EventKind::Sealed, None),
        K::Lost { cause } => (events::EventKind::Lost, Some(cause)),
        K::Released => (events::EventKind::Released, None),
        K::Expired => (events::EventKind::Expired, None),
        K::Superseded => (events::EventKind::Superseded, None),
        K::Reset => (events::EventKind::Reset, None),
    };
    events::EventDocument {
        kind,
        job: event.job.to_string(),
        dataset: event.dataset.as_ref().map(ToString::to_string),
        partition: event.partition.map(PartitionId::get),
        attempt: event.attempt.map(|attempt| attempt.to_string()),
        location: event.location.as_ref().map(location),
        cause: cause.map(|cause| cause.as_str().to_owned()),
    }
}

pub(super) fn node(view: &domain::NodeView, (memory_budget_bytes, memory_used_bytes): (u64, u64)) -> node::NodeDocument {
    node::NodeDocument {
        location: location(&view.location),
        state: match view.state {
            domain::NodeState::Ready => node::NodeState::Ready,
            domain::NodeState::Draining => node::NodeState::Draining,
        },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        classes: view.classes.iter().copied().map(class).collect(),
        memory_budget_bytes,
        memory_used_bytes,
    }
}

#[cfg(test)]
mod tests;
