//! States: of one partition, of many, and listings of what is sealed.

use super::PartitionService;
use super::attempt::peek;
use super::calls::{AvailabilityView, AvailabilityWant, PartitionAddress, PartitionPage, PartitionState, PartitionView};
use super::error::{ServiceErrorKind, ServiceResult};
use super::read::{may_be_elsewhere, offset_of};
use super::registry::{Dataset, Job, Partition};
use std::ops::Bound;
use std::sync::Arc;
use store_api::{AttemptId, DatasetId, JobId, PartitionId, SealManifest, StoreClass, SubpartitionIndex};

/// A sealed attempt of a dataset: the order of listings.
type Sealed = (PartitionId, AttemptId);

impl Partition {
    /// Its state, and the attempt that is readable or being written.
    fn state(&self) -> (PartitionState, Option<AttemptId>) {
        if self.is_released {
            return (PartitionState::Released, None);
        }
        if let Some(sealed) = self.sealed() {
            return (PartitionState::Sealed, Some(self.id(sealed)));
        }
        if let Some(cause) = self.lost {
            return (PartitionState::Lost { cause }, None);
        }
        if let Some(open) = self.open() {
            return (PartitionState::Open, Some(self.id(open)));
        }
        match self.attempts.last() {
            Some(_) => (PartitionState::Aborted, None),
            None if self.generation > 0 => (PartitionState::Superseded, None),
            None => (PartitionState::NotWritten, None),
        }
    }
}

impl PartitionService {
    /// A partition. One that nobody has opened is a view too, as long as it may exist. Cancel-safe.
    /// Errors: `UnknownJob`, `UnknownDataset`, `UnknownPartition`, `Released` and `Expired` of the
    /// job or dataset, `Unavailable`.
    pub async fn partition(&self, at: &PartitionAddress) -> ServiceResult<PartitionView> {
        let (job, dataset) = self.find_partition(at).await?;
        let (state, attempt) = self.state_of(&job, &dataset, at.partition).await?;
        let (generation, attempts) = peek(&dataset, at.partition, |known| {
            let mut sealed: Vec<AttemptId> = known.sealed_attempts().map(|attempt| known.id(attempt)).collect();
            sealed.sort_unstable();
            Ok((known.generation, sealed))
        })?;
        let manifest = match attempt.filter(|_| state == PartitionState::Sealed) {
            Some(attempt) => Some(self.manifest_at(&job, &dataset, at.partition, attempt).await?),
            None => None,
        };
        Ok(PartitionView {
            partition: at.partition,
            state,
            generation,
            manifest: manifest.map(|manifest| self.manifest_view(manifest)),
            attempts: if dataset.has_one_winner() { Vec::new() } else { attempts },
        })
    }

    /// The state of a partition; a durable one that is not known here is looked for on the medium.
    async fn state_of(&self, job: &Job, dataset: &Dataset, partition: PartitionId) -> ServiceResult<(PartitionState, Option<AttemptId>)> {
        let look = || peek(dataset, partition, |known| Ok(known.state()));
        let known = look()?;
        let is_settled =
            peek(dataset, partition, |known| known.pick(dataset, None)).map_or_else(|error| !may_be_elsewhere(error.kind()), |_| true);
        if dataset.is_durable() && !is_settled && dataset.store.is_some() && self.locate(job, dataset, partition).await? {
            return look();
        }
        Ok(known)
    }

    /// A page of the sealed attempts that this node knows, in order of (partition, attempt), after
    /// `after`. At most `limit` entries, clipped to `max_page`. Attempts that end while the page is
    /// put together are left out; each entry is whole. Cancel-safe. Errors: those of the dataset,
    /// `Unavailable`.
    pub async fn partitions(
        &self,
        job: &JobId,
        dataset: &DatasetId,
        after: Option<(PartitionId, AttemptId)>,
        limit: Option<usize>,
    ) -> ServiceResult<PartitionPage> {
        let job = self.find_job(job).await?;
        let dataset = self.find_dataset(&job, dataset).await?;
        let limit = limit.unwrap_or(self.config.max_page).clamp(1, self.config.max_page);
        let (named, next_after) = sealed_after(&dataset, after, limit);
        let mut manifests = Vec::with_capacity(named.len());
        for (partition, attempt) in named {
            match self.manifest_at(&job, &dataset, partition, attempt).await {
                Ok(manifest) => manifests.push(self.manifest_view(manifest)),
                Err(error) if is_gone(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(PartitionPage { manifests, next_after })
    }

    /// States of many partitions, in the order asked. Unknown datasets and partitions are answered
    /// as such, and each item for itself. Cancel-safe. Errors: those of the job, `TooLarge` for too
    /// many partitions, `Unavailable`.
    pub async fn availability(&self, job: &JobId, wants: Vec<AvailabilityWant>) -> ServiceResult<Vec<AvailabilityView>> {
        let total = wants.iter().fold(0_u64, |sum, want| sum.saturating_add(u64::from(want.n_partitions)));
        if total > self.config.max_availability_items as u64 {
            return Err(ServiceErrorKind::TooLarge { limit: self.config.max_availability_items as u64 }.into());
        }
        let job = self.find_job(job).await?;
        let mut views = Vec::with_capacity(usize::try_from(total).unwrap_or_default());
        for want in wants {
            let found = self.find_dataset(&job, &want.dataset).await;
            for step in 0..u64::from(want.n_partitions) {
                let Some(number) = want.partition.get().checked_add(step) else { break };
                let partition = PartitionId::new(number);
                let view = match &found {
                    Ok(dataset) => self.view_of_partition(&job, dataset, partition, want.subpartition).await?,
                    Err(error) => match error.kind() {
                        ServiceErrorKind::UnknownDataset => unavailable(&want.dataset, partition, PartitionState::Unknown),
                        ServiceErrorKind::Released => unavailable(&want.dataset, partition, PartitionState::Released),
                        ServiceErrorKind::Expired => unavailable(&want.dataset, partition, PartitionState::Expired),
                        kind => return Err(kind.clone().into()),
                    },
                };
                views.push(view);
            }
        }
        Ok(views)
    }

    async fn view_of_partition(
        &self,
        job: &Arc<Job>,
        dataset: &Arc<Dataset>,
        partition: PartitionId,
        subpartition: Option<SubpartitionIndex>,
    ) -> ServiceResult<AvailabilityView> {
        let stored = match subpartition.map(|index| dataset.stored(index)).transpose() {
            Ok(stored) if dataset.check_partition(partition).is_ok() => stored,
            Ok(_) | Err(_) => return Ok(unavailable(&dataset.key.dataset, partition, PartitionState::Unknown)),
        };
        let (state, attempt) = self.state_of(job, dataset, partition).await?;
        let mut view = AvailabilityView { attempt, ..unavailable(&dataset.key.dataset, partition, state) };
        let Some(id) = attempt else { return Ok(view) };
        view.location = Some(self.node.location.clone());
        if state == PartitionState::Sealed {
            match self.manifest_at(job, dataset, partition, id).await {
                Ok(manifest) => fill_sealed(&mut view, &manifest, stored),
                // It ended a moment ago: say what it is now.
                Err(error) if is_gone(error.kind()) => {
                    let (state, attempt) = peek(dataset, partition, |known| Ok(known.state()))?;
                    return Ok(AvailabilityView { attempt, ..unavailable(&dataset.key.dataset, partition, state) });
                }
                Err(error) => return Err(error),
            }
        }
        if dataset.is_pipelined() || state == PartitionState::Open {
            self.fill_open(&mut view, dataset, partition, id, stored).await;
        }
        Ok(view)
    }

    /// Adds what the store says of an attempt that may change at any moment; nothing when it has
    /// ended meanwhile.
    async fn fill_open(
        &self,
        view: &mut AvailabilityView,
        dataset: &Dataset,
        partition: PartitionId,
        id: AttemptId,
        stored: Option<SubpartitionIndex>,
    ) {
        let key = dataset.attempt_key(partition, id);
        let Some(store) = &dataset.store else { return };
        if let Ok(stat) = store.stat(&key).await {
            view.total_bytes = view.total_bytes.or(Some(stat.total_bytes));
            if let Some(stored) = stored {
                view.floor = Some(offset_of(&stat.floors, stored));
                view.sent = dataset.is_pipelined().then(|| offset_of(&stat.sent, stored));
            }
        }
        // A sealed pipelined attempt need not start at 0: its tail, not its length, is its end.
        if let Some(stored) = stored.filter(|_| view.end.is_none() || dataset.is_pipelined())
            && let Ok(bounds) = store.bounds(&key, stored).await
        {
            view.end = Some(bounds.tail);
        }
    }
}

/// Names of sealed attempts after one, at most `limit`, and where the next page begins.
fn sealed_after(dataset: &Dataset, after: Option<(PartitionId, AttemptId)>, limit: usize) -> (Vec<Sealed>, Option<Sealed>) {
    let from = after.map_or(Bound::Unbounded, |(partition, _)| Bound::Included(partition.get()));
    let partitions = dataset.partitions.read();
    let mut named = Vec::new();
    for (number, known) in partitions.range((from, Bound::Unbounded)) {
        if named.len() > limit {
            break;
        }
        let mut of_partition: Vec<_> = known.sealed_attempts().map(|attempt| (PartitionId::new(*number), known.id(attempt))).collect();
        of_partition.retain(|name| after.is_none_or(|after| *name > after));
        of_partition.sort_unstable();
        named.extend(of_partition);
    }
    let has_more = named.len() > limit;
    named.truncate(limit);
    let next_after = named.last().copied().filter(|_| has_more);
    (named, next_after)
}

const fn is_gone(kind: &ServiceErrorKind) -> bool {
    matches!(
        kind,
        ServiceErrorKind::Released
            | ServiceErrorKind::Expired
            | ServiceErrorKind::Fenced { .. }
            | ServiceErrorKind::Lost { .. }
            | ServiceErrorKind::Aborted
            | ServiceErrorKind::UnknownAttempt
    )
}

fn unavailable(dataset: &DatasetId, partition: PartitionId, state: PartitionState) -> AvailabilityView {
    AvailabilityView {
        dataset: dataset.clone(),
        partition,
        state,
        attempt: None,
        total_bytes: None,
        class: None,
        location: None,
        floor: None,
        end: None,
        crc: None,
        sent: None,
    }
}

fn fill_sealed(view: &mut AvailabilityView, manifest: &SealManifest, stored: Option<SubpartitionIndex>) {
    view.total_bytes = Some(manifest.table.total_bytes());
    view.class = Some(manifest.class);
    if let Some(digest) = stored.and_then(|stored| manifest.table.digest(stored)) {
        view.floor = Some(store_api::Offset::ZERO);
        // A pipelined attempt may start beyond 0: its end is its tail, not its length.
        let starts_at_zero = manifest.class.class != StoreClass::Pipelined;
        view.end = starts_at_zero.then(|| store_api::Offset::new(digest.length));
        view.crc = Some(digest.crc);
    }
}
