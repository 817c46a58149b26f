//! What was left behind: uploads of former lives of this node, content of jobs that are dead, and
//! what is found at the start.
//!
//! Nothing here decides that a job is dead: the caller says so. Not knowing is never taken for
//! "not there": an error ends the work before anything is deleted on its account.

use crate::error::BucketError;
use crate::inner::Inner;
use crate::layout::Name;
use crate::lookup::{Found, unknown};
use crate::manifest::{LONGEST_TOMBSTONE, Record};
use crate::upload::{decode_note, end_upload};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use std::collections::BTreeSet;
use store_api::{JobId, JobIncarnation, LossCause, Operation, RecoveryReport, StoreError};

/// Manifests that are read side by side at the start.
const SIDE_BY_SIDE: usize = 16;

/// What a sweep is to do.
#[derive(Debug, Clone, Default)]
pub struct SweepRequest {
    /// Incarnations of jobs that are known to be dead: everything of them goes, markers and
    /// tombstones too. Name one no earlier than the longest write deadline plus the lease after its
    /// end, so that nothing is still on its way.
    pub dead: Vec<(JobId, JobIncarnation)>,
    /// Only count.
    pub is_dry_run: bool,
}

/// What a sweep found (or would take away).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Objects of dead jobs.
    pub n_objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Uploads in parts of former lives of this node.
    pub n_uploads: u64,
}

impl Inner {
    /// Everything of dead jobs, and uploads of former lives.
    pub(crate) async fn sweep(&self, request: &SweepRequest) -> Result<SweepReport, StoreError> {
        let fail = |error: BucketError| unknown(error, Operation::Release, "sweep");
        let mut report =
            SweepReport { n_uploads: self.end_former_uploads(request.is_dry_run).await.map_err(fail)?, ..SweepReport::default() };
        for (job, incarnation) in &request.dead {
            let found = self.bucket.list(&self.layout.job(job, *incarnation)).await.map_err(fail)?;
            report.n_objects = report.n_objects.saturating_add(found.len() as u64);
            report.bytes = found.iter().fold(report.bytes, |sum, meta| sum.saturating_add(meta.size));
            if !request.is_dry_run {
                let paths: Vec<Path> = found.into_iter().map(|meta| meta.location).collect();
                self.bucket.delete(&paths).await.map_err(fail)?;
            }
        }
        Ok(report)
    }

    /// Ends uploads in parts that a former life of this node left unfinished. Uploads of other nodes
    /// are theirs. Answers how many were ended (or would be).
    async fn end_former_uploads(&self, is_dry_run: bool) -> Result<u64, BucketError> {
        let own = self.layout.uploads_of_life(&self.node, self.life);
        let notes = self.bucket.list(&self.layout.uploads(&self.node)).await?;
        let mut n_uploads = 0_u64;
        for note in notes.into_iter().map(|meta| meta.location).filter(|note| !note.prefix_matches(&own)) {
            if is_dry_run {
                n_uploads = n_uploads.saturating_add(1);
                continue;
            }
            let Some((bytes, _)) = self.bucket.fetch(&note).await? else { continue };
            match decode_note(&bytes) {
                Some((path, id)) if self.bucket.has_parts() => {
                    // One that cannot be ended now keeps its note for the next time.
                    match end_upload(&self.bucket, &path, &id, &note).await {
                        Ok(()) => n_uploads = n_uploads.saturating_add(1),
                        Err(error) => tracing::warn!(%note, %error, "an upload of a former life could not be ended"),
                    }
                }
                _ => tracing::warn!(%note, "a note about an upload is not readable and stays"),
            }
        }
        Ok(n_uploads)
    }

    /// Incarnations of jobs that have anything in the object store. One listing for the jobs and one
    /// for each of them: what it holds grows with jobs, not with objects.
    pub(crate) async fn jobs(&self) -> Result<Vec<(JobId, JobIncarnation)>, StoreError> {
        let fail = |error: BucketError| unknown(error, Operation::Recover, "jobs");
        let folders = self.bucket.folders(&self.layout.partitions()).await.map_err(fail)?;
        let of_jobs = folders.into_iter().filter_map(|folder| Some((JobId::new(folder.filename()?).ok()?, folder)));
        let listings = futures::stream::iter(of_jobs).map(|(job, folder)| async move { Ok((job, self.bucket.folders(&folder).await?)) });
        let mut listings = listings.buffer_unordered(SIDE_BY_SIDE);
        let mut jobs = BTreeSet::new();
        while let Some((job, incarnations)) = listings.try_next().await.map_err(fail)? {
            let parsed = incarnations.iter().filter_map(|folder| folder.filename()?.parse().ok());
            jobs.extend(parsed.map(|incarnation| (job.clone(), incarnation)));
        }
        Ok(jobs.into_iter().collect())
    }

    /// See [`store_api::PartitionStore::recover`].
    pub(crate) async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        let fail = |error: BucketError| unknown(error, Operation::Recover, "object store");
        let mut report = RecoveryReport { n_dropped: self.end_former_uploads(false).await.map_err(fail)?, ..RecoveryReport::default() };
        if !self.config.lists_at_start {
            return Ok(report);
        }
        let found = self.bucket.list(&self.layout.partitions()).await.map_err(fail)?;
        let seals = found.into_iter().filter(|meta| meta.size > LONGEST_TOMBSTONE);
        let seals = seals.filter(|meta| matches!(self.layout.parse(&meta.location), Some(Name::Seal { .. }))).map(|meta| meta.location);
        let records = futures::stream::iter(seals).map(|path| async move { self.fetch_record(&path).await.map(|found| (path, found)) });
        let mut records = records.buffer_unordered(SIDE_BY_SIDE);
        while let Some((path, found)) = records.try_next().await.map_err(fail)? {
            self.take_stock(&mut report, path, found);
        }
        Ok(report)
    }

    fn take_stock(&self, report: &mut RecoveryReport, path: Path, found: Found) {
        match found {
            Found::Record(Record::Sealed(sealed)) if sealed.manifest.node == self.node => {
                if let Ok(attempt) = self.take_in(&sealed, path) {
                    report.sealed.extend(attempt.lock().sealed());
                }
            }
            Found::Unreadable(error) => {
                tracing::warn!(%path, %error, "a manifest is not readable");
                report.n_quarantined = report.n_quarantined.saturating_add(1);
                if let Some(Name::Seal { partition, generation, attempt: Some(attempt) }) = self.layout.parse(&path) {
                    report.lost.push((partition.attempt(store_api::AttemptId::new(generation, attempt)), LossCause::Corruption));
                }
            }
            Found::Nothing | Found::Record(_) => {}
        }
    }
}
