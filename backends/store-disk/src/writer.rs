//! From memory to disk: write-outs under pressure, seals, and their publication.
//!
//! A seal is made in two steps. *Prepare* writes what is still in memory, syncs every data file of
//! the attempt and its name, and only then lets the memory go. *Publish* commits the row; many
//! share one sync of the log. So a row never speaks of bytes that are not there.

use crate::account::JobAccount;
use crate::attempt::{Attempt, End, OwnFile, Phase};
use crate::core::Core;
use crate::error::write_error;
use crate::index::{Change, Family};
use crate::layout::{FILE_MAGIC, FileId, FileSpan, Run};
use crate::{keys, row};
use bytes::Bytes;
use futures::StreamExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store_api::clock::within;
use store_api::{LossCause, Operation, SealManifest, SealOutcome, StoreError, StoreErrorKind, SubpartitionTable, SyncLevel};
use store_file::{FileError, FileErrorKind, FileOperation, FileWriter};

/// Attempts that are written out side by side.
const N_SPILLS: usize = 4;

fn no_directory() -> FileError {
    FileError::new(FileErrorKind::Io, FileOperation::Probe, std::path::Path::new(""))
}

impl Core {
    fn syncs(&self) -> bool {
        self.config.sync != SyncLevel::None
    }

    /// Whether memory should be written out: someone waits for it, or more than half is used.
    fn is_pressed(&self) -> bool {
        self.n_waiting.load(Ordering::SeqCst) > 0 || self.budget.used_bytes() > self.budget.limit_bytes() / 2
    }

    fn is_job_pressed(account: &JobAccount) -> bool {
        account.budget.used_bytes() > account.budget.limit_bytes() / 2
    }

    /// Starts writing out if memory is short and nobody does it yet. Cheap.
    pub(crate) fn relieve(self: &Arc<Self>, account: &JobAccount) {
        if !(self.is_pressed() || Self::is_job_pressed(account)) || self.is_spilling.swap(true, Ordering::SeqCst) {
            return;
        }
        let core = self.clone();
        self.media.tasks.spawn_to_end(async move { core.spill_until_relieved().await });
    }

    /// Writes out the largest buffers until memory is no longer short or nothing more can be
    /// freed. After a failure it stops; the next append or reservation starts it again.
    async fn spill_until_relieved(self: Arc<Self>) {
        loop {
            let candidates = self.registry.spillable();
            let is_pressed = self.is_pressed();
            let victims = candidates.into_iter().filter(|(_, attempt)| is_pressed || Self::is_job_pressed(&attempt.account));
            let mut spills = futures::stream::iter(victims)
                .map(|(_, attempt)| {
                    let core = self.clone();
                    async move {
                        let is_needed = core.is_pressed() || Self::is_job_pressed(&attempt.account);
                        if is_needed { core.spill_in_time(attempt).await } else { Ok(false) }
                    }
                })
                .buffer_unordered(N_SPILLS);
            let mut has_freed = false;
            while let Some(spilled) = spills.next().await {
                match spilled {
                    Ok(freed) => {
                        has_freed |= freed;
                        if freed && self.has_spill_failed.swap(false, Ordering::SeqCst) {
                            self.is_disk_full.store(false, Ordering::SeqCst);
                            tracing::info!("bytes are written out again");
                        }
                    }
                    Err(error) => {
                        self.is_disk_full.store(*error.kind() == StoreErrorKind::DiskFull, Ordering::SeqCst);
                        // Said once, not with every try.
                        if !self.has_spill_failed.swap(true, Ordering::SeqCst) {
                            tracing::warn!(?error, "bytes stay in memory: they could not be written out");
                        }
                        self.is_spilling.store(false, Ordering::SeqCst);
                        return;
                    }
                }
            }
            if !has_freed {
                self.is_spilling.store(false, Ordering::SeqCst);
                return;
            }
        }
    }

    /// As [`Core::spill`], but does not wait longer for a disk that hangs than for one that is busy:
    /// the write goes on, and other attempts are written out meanwhile.
    async fn spill_in_time(self: &Arc<Self>, attempt: Arc<Attempt>) -> Result<bool, StoreError> {
        let core = self.clone();
        let spilled = self.to_end(async move { core.spill(&attempt).await });
        let patience = self.config.lane_patience;
        within(self.environment.clock.as_ref(), patience, spilled).await.flatten().unwrap_or(Ok(false))
    }

    /// Writes out all that an attempt has in memory. Answers whether anything was freed.
    pub(crate) async fn spill(&self, attempt: &Arc<Attempt>) -> Result<bool, StoreError> {
        let _turn = attempt.turn.lock().await;
        let Some(run) = attempt.begin_spill() else { return Ok(false) };
        let mut files = attempt.inner.lock().files.clone();
        let written = self.write_run(&run, &mut files, false).await;
        let place = written.as_ref().ok().copied();
        let orphans = attempt.finish_run(&run, files, place);
        self.media.remove(orphans).await;
        written.map(|_| true).map_err(|error| write_error(error, Operation::Append, &attempt.key))
    }

    /// Writes a run to the attempt's last file, or to a new one when there is none or it takes no
    /// more. Tries each directory at most once. The bytes count only when all of them were written.
    async fn write_run(&self, run: &Run, files: &mut Vec<OwnFile>, is_synced: bool) -> Result<(u16, u64), FileError> {
        let mut tries_left = self.media.directories.count();
        loop {
            let last = files.last().copied().filter(|file| !file.is_closed);
            let directory = self.place(last.map(|file| file.directory), run.length).await?;
            let last = last.filter(|file| file.directory == directory);
            let is_new = last.is_none();
            let target = match last {
                Some(file) => file,
                None => self.new_file(directory)?,
            };
            match self.write_to(target, is_new, run.pieces(), is_synced).await {
                Ok((file, offset)) => {
                    if is_new {
                        files.push(file);
                    } else if let Some(last) = files.last_mut() {
                        *last = file;
                    }
                    // An attempt has no more files than there were failures of directories.
                    let index = u16::try_from(files.len().saturating_sub(1)).unwrap_or(u16::MAX);
                    return Ok((index, offset));
                }
                Err(error) => {
                    if is_new {
                        self.media.remove(vec![(target.directory, target.span.file)]).await;
                    } else if let Some(last) = files.last_mut() {
                        last.is_closed = true;
                    }
                    let may_go_elsewhere = error.operation != FileOperation::Sync && error.kind != FileErrorKind::Busy;
                    if !may_go_elsewhere || (is_new && tries_left <= 1) {
                        return Err(error);
                    }
                    tries_left -= usize::from(is_new);
                }
            }
        }
    }

    async fn place(&self, preferred: Option<usize>, length: u64) -> Result<usize, FileError> {
        let media = self.media.clone();
        let placed = self.media.tasks.run_blocking(move || media.directories.place(preferred, length)).await;
        placed.unwrap_or_else(|| Err(no_directory()))
    }

    fn new_file(&self, directory: usize) -> Result<OwnFile, FileError> {
        let id = self.media.directory_ids.get(directory).copied().ok_or_else(no_directory)?;
        let file = FileId { life: self.environment.life.get(), number: self.next_file.fetch_add(1, Ordering::Relaxed) };
        Ok(OwnFile { directory, span: FileSpan { directory: id, file, length: 0 }, synced: 0, is_named: false, is_closed: false })
    }

    async fn write_to(&self, mut file: OwnFile, is_new: bool, pieces: Vec<Bytes>, is_synced: bool) -> Result<(OwnFile, u64), FileError> {
        let (media, path) = (self.media.clone(), self.media.path((file.directory, file.span.file)));
        let work = move || {
            let mut writer = if is_new { FileWriter::create(&path)? } else { FileWriter::resume(&path, file.span.length)? };
            if is_new {
                writer.append(&[Bytes::from_static(FILE_MAGIC)])?;
            }
            let offset = writer.append(&pieces)?;
            if is_synced {
                media.sync(&mut writer)?;
                media.directories.sync_names(file.directory)?;
                file.is_named = true;
                file.synced = writer.position();
            }
            file.span.length = writer.finish()?;
            media.sizes.note((file.directory, file.span.file), file.span.length);
            Ok((file, offset))
        };
        self.media.directories.run(&self.media.tasks, file.directory, work).await
    }

    /// Syncs what is not synced of files that were written before.
    async fn sync_files(&self, files: &mut [OwnFile]) -> Result<(), FileError> {
        for file in files.iter_mut().filter(|file| !file.is_named || file.synced < file.span.length) {
            let mut synced = *file;
            let (media, path) = (self.media.clone(), self.media.path((file.directory, file.span.file)));
            let work = move || {
                media.sync(&mut FileWriter::resume(&path, synced.span.length)?)?;
                media.directories.sync_names(synced.directory)?;
                (synced.is_named, synced.synced) = (true, synced.span.length);
                Ok(synced)
            };
            *file = self.media.directories.run(&self.media.tasks, file.directory, work).await?;
        }
        Ok(())
    }

    /// Makes the content of an attempt final and durable. To be run to its end.
    pub(crate) async fn prepare(
        self: Arc<Self>,
        attempt: Arc<Attempt>,
        expected: Option<Arc<SubpartitionTable>>,
    ) -> Result<Arc<SealManifest>, StoreError> {
        let _turn = attempt.turn.lock().await;
        let run = match attempt.begin_prepare(expected.as_deref())? {
            Ok(run) => run,
            Err(manifest) => return Ok(manifest),
        };
        let before = attempt.inner.lock().files.clone();
        let mut files = before.clone();
        match self.make_durable(&run, &mut files).await {
            Ok(written) => {
                let finished = attempt.finish_prepare(&run, files, written, |table| self.manifest(&attempt, table));
                match finished {
                    Ok(manifest) => Ok(manifest),
                    Err(late) => {
                        self.media.remove(late.files).await;
                        Err(late.error)
                    }
                }
            }
            Err(error) => Err(self.undo_prepare(&attempt, &run, before, files, error).await),
        }
    }

    async fn make_durable(&self, run: &Run, files: &mut Vec<OwnFile>) -> Result<Option<(u16, u64)>, FileError> {
        let written = if run.length > 0 { Some(self.write_run(run, files, self.syncs()).await?) } else { None };
        if self.syncs() {
            self.sync_files(files).await?;
        }
        Ok(written)
    }

    /// After a failed seal: the attempt is open again with all that was in memory, and the next try
    /// writes it to a new file. When a sync failed over bytes that are no longer in memory, they
    /// may be gone, and a second sync would not tell: the attempt is lost.
    async fn undo_prepare(
        &self,
        attempt: &Attempt,
        run: &Run,
        mut before: Vec<OwnFile>,
        files: Vec<OwnFile>,
        error: FileError,
    ) -> StoreError {
        let mut orphans: Vec<_> = files.iter().skip(before.len()).map(|file| (file.directory, file.span.file)).collect();
        let is_old = before.iter().any(|file| self.media.path((file.directory, file.span.file)) == error.path);
        let is_lost = match (error.operation, error.kind) {
            (_, FileErrorKind::Busy) => false,
            // A failed sync of names tells no file; those written before may be without a name.
            (FileOperation::Sync, _) => is_old || before.iter().any(|file| !file.is_named),
            // Somebody removed or cut the file; without its directory the disk may just be away.
            (_, FileErrorKind::Missing | FileErrorKind::Short) => is_old && error.path.parent().is_some_and(std::path::Path::is_dir),
            _ => false,
        };
        for (old, new) in before.iter_mut().zip(&files) {
            old.is_closed |= new.is_closed;
        }
        orphans.extend(attempt.finish_run(run, before, None));
        if is_lost {
            orphans.extend(attempt.end(End::Lost(LossCause::Disk)).files);
        }
        self.media.remove(orphans).await;
        if is_lost {
            return attempt.refuse(StoreErrorKind::Lost { cause: LossCause::Disk }, Operation::Prepare).with_source(error);
        }
        write_error(error, Operation::Prepare, &attempt.key)
    }

    fn manifest(&self, attempt: &Attempt, table: SubpartitionTable) -> SealManifest {
        SealManifest {
            attempt: attempt.key.clone(),
            table,
            class: self.capabilities.class,
            node: self.environment.node.clone(),
            life: self.environment.life,
            sealed_at_ms: self.environment.clock.unix_ms(),
        }
    }

    /// Commits the row of a prepared attempt. To be run to its end.
    pub(crate) async fn publish(self: Arc<Self>, attempt: Arc<Attempt>) -> Result<SealOutcome, StoreError> {
        let _turn = attempt.turn.lock().await;
        let (manifest, ticket) = {
            let mut inner = attempt.inner.lock();
            let manifest = match &inner.phase {
                Phase::Prepared(manifest) => manifest.clone(),
                Phase::Sealed(manifest) => return Ok(SealOutcome::Won(manifest.clone())),
                Phase::Open | Phase::Preparing | Phase::Publishing(_) => {
                    return Err(attempt.refuse(StoreErrorKind::NotSealed, Operation::Publish));
                }
                Phase::Gone(_, cause) => return Err(attempt.refuse(StoreErrorKind::Lost { cause: *cause }, Operation::Publish)),
                Phase::Ended(end) => return Err(attempt.refuse(end.kind(), Operation::Publish)),
            };
            let Some(layout) = inner.layout.clone() else { return Err(attempt.refuse(StoreErrorKind::Internal, Operation::Publish)) };
            inner.phase = Phase::Publishing(manifest.clone());
            inner.has_row = true;
            let put = Change::Put(Family::Seals, keys::of_attempt(&attempt.key), row::encode(&manifest, &layout));
            // Under the lock: a release that comes next queues its removal behind this.
            (manifest, self.index.queue(vec![put], false))
        };
        let settled = self.index.settle(&self.media.tasks, ticket).await;
        let mut inner = attempt.inner.lock();
        if let Phase::Ended(end) = inner.phase {
            return Err(attempt.refuse(end.kind(), Operation::Publish));
        }
        match settled {
            Ok(()) => {
                inner.phase = Phase::Sealed(manifest.clone());
                Ok(SealOutcome::Won(manifest))
            }
            Err(error) => {
                inner.phase = Phase::Prepared(manifest);
                Err(error.at(Operation::Publish, &attempt.key))
            }
        }
    }
}
