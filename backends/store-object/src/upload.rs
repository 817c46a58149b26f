//! Sends batches to the object store while the producer still writes.
//!
//! One task per attempt with something to send runs [`Inner::pump`]; it sends a few batches side by
//! side and ends when nothing waits. A batch stays in memory, charged, until the store has accepted
//! it; one that is not accepted is sent again, to the same place, when sending goes on. So a failed
//! part never spoils the parts before it.
//!
//! Each upload in parts is noted in an object of its own before its first part, so that the next
//! life of this node can end it: object stores show unfinished uploads to nobody who does not know
//! their ids.

use crate::attempt::{Attempt, ContentObject, Multipart, Task};
use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::inner::Inner;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::MultipartId;
use object_store::multipart::PartId;
use object_store::path::Path;
use std::sync::Arc;

/// The note about an upload in parts: the name of the object and the upload's id.
pub(crate) fn encode_note(path: &Path, id: &str) -> Bytes {
    Bytes::from(format!("1\n{path}\n{id}"))
}

/// Reads a note; `None` when it is none, or of another version.
pub(crate) fn decode_note(note: &[u8]) -> Option<(Path, MultipartId)> {
    let text = std::str::from_utf8(note).ok()?;
    let mut lines = text.splitn(3, '\n');
    if lines.next()? != "1" {
        return None;
    }
    Some((Path::parse(lines.next()?).ok()?, lines.next()?.to_owned()))
}

/// Ends an upload in parts, then takes its note away.
pub(crate) async fn end_upload(bucket: &Bucket, path: &Path, id: &MultipartId, note: &Path) -> Result<(), BucketError> {
    bucket.abort(path, id).await?;
    bucket.delete(std::slice::from_ref(note)).await
}

impl Inner {
    /// Sends what waits, in the background. Clears an earlier failure.
    pub(crate) fn send(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        {
            let mut core = attempt.lock();
            core.writing.failure = None;
            if core.is_sent() || core.writing.is_pumping {
                return;
            }
            core.writing.is_pumping = true;
        }
        let (inner, attempt) = (self.clone(), attempt.clone());
        self.spawn(async move { inner.pump(&attempt).await });
    }

    async fn pump(&self, attempt: &Attempt) {
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < self.config.uploads_per_attempt {
                let task = attempt.lock().next_task();
                let Some(task) = task else { break };
                running.push(Box::pin(self.send_task(attempt, task)));
            }
            if running.next().await.is_none() && attempt.lock().stop_pumping() {
                attempt.notify();
                return;
            }
        }
    }

    async fn send_task(&self, attempt: &Attempt, task: Task) {
        let payload = task.bytes.payload();
        let sent = match &task.part {
            None => self.bucket.put(&task.path, payload).await.map(|_| None),
            Some((multipart, index)) => self.send_part(multipart, &task.path, *index, payload).await.map(Some),
        };
        let (path, part) = (task.path.clone(), task.part.clone());
        let is_wanted = match sent {
            Ok(id) => attempt.lock().accepted(&task, id),
            Err(error) => {
                tracing::warn!(attempt = %attempt.key, bytes = task.bytes.bytes(), %error, "object store did not take a part of an attempt");
                attempt.lock().refused(&task, error);
                true
            }
        };
        drop(task);
        attempt.notify();
        if !is_wanted {
            self.erase_one(attempt, &path, part.map(|(multipart, _)| multipart)).await;
        }
    }

    async fn send_part(
        &self,
        multipart: &Multipart,
        path: &Path,
        index: usize,
        payload: object_store::PutPayload,
    ) -> Result<PartId, BucketError> {
        let (id, _) = multipart.id.get_or_try_init(|| self.begin_upload(path)).await?;
        self.bucket.put_part(path, id, index, payload).await
    }

    async fn begin_upload(&self, path: &Path) -> Result<(MultipartId, u64), BucketError> {
        let id = self.bucket.begin(path).await?;
        let number = self.draw_number();
        let note = self.layout.upload(&self.node, self.life, number);
        if let Err(error) = self.bucket.put(&note, encode_note(path, &id).into()).await {
            if let Err(left) = self.bucket.abort(path, &id).await {
                tracing::warn!(%left, "an upload in parts without a note could not be ended");
            }
            return Err(error);
        }
        Ok((id, number))
    }

    /// Something of an attempt reached the store after the attempt had ended: takes it away again.
    async fn erase_one(&self, attempt: &Attempt, path: &Path, multipart: Option<Arc<Multipart>>) {
        let erased = match multipart.as_ref().and_then(|multipart| multipart.id.get()) {
            Some((id, number)) => end_upload(&self.bucket, path, id, &self.layout.upload(&self.node, self.life, *number)).await,
            None => self.bucket.delete(std::slice::from_ref(path)).await,
        };
        if let Err(error) = erased {
            tracing::warn!(attempt = %attempt.key, %error, "content of an ended attempt is left for the sweep of its job");
        }
    }

    /// Ends unfinished uploads and deletes the objects. Errors: the first; all were tried.
    pub(crate) async fn erase(&self, objects: &[ContentObject], others: Vec<Path>) -> Result<(), BucketError> {
        let mut failed = None;
        let mut paths = others;
        for object in objects {
            let begun = object.multipart.as_ref().filter(|_| !object.is_complete).and_then(|multipart| multipart.id.get());
            match begun {
                Some((id, number)) => {
                    let note = self.layout.upload(&self.node, self.life, *number);
                    if let Err(error) = end_upload(&self.bucket, &object.path, id, &note).await {
                        failed.get_or_insert(error);
                    }
                }
                None => paths.push(object.path.clone()),
            }
        }
        paths.sort_unstable();
        paths.dedup();
        if let Err(error) = self.bucket.delete(&paths).await {
            failed.get_or_insert(error);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Makes objects of all uploads in parts. Errors: `Missing` when an upload, and so its bytes,
    /// is gone.
    pub(crate) async fn complete_uploads(self: &Arc<Self>, attempt: &Attempt) -> Result<(), BucketError> {
        let objects = attempt.lock().writing.objects.clone();
        for (at, object) in objects.iter().enumerate().filter(|(_, object)| !object.is_complete) {
            let Some((id, number)) = object.multipart.as_ref().and_then(|multipart| multipart.id.get()) else { continue };
            let parts: Vec<PartId> = object.parts.iter().flatten().cloned().collect();
            self.bucket.complete(&object.path, id, &parts, object.size).await?;
            if let Some(done) = attempt.lock().writing.objects.get_mut(at) {
                done.is_complete = true;
            }
            let (inner, note) = (self.clone(), self.layout.upload(&self.node, self.life, *number));
            self.spawn(async move {
                if let Err(error) = inner.bucket.delete(std::slice::from_ref(&note)).await {
                    tracing::debug!(%error, "the note about a finished upload is left for the next start");
                }
            });
        }
        Ok(())
    }

    /// Sends the largest buffers until `wanted` bytes are on their way, so that a full budget is
    /// given back however the buffers share it.
    pub(crate) fn relieve(self: &Arc<Self>, wanted: u64) {
        let mut on_their_way = 0_u64;
        let mut buffered: Vec<(u64, Arc<Attempt>)> = Vec::new();
        for attempt in self.registry.all() {
            let (unsent, pending) = attempt.lock().unsent();
            on_their_way = on_their_way.saturating_add(pending);
            if pending > 0 {
                self.send(&attempt);
            }
            if unsent > 0 {
                buffered.push((unsent, attempt));
            }
        }
        buffered.sort_unstable_by_key(|(unsent, _)| std::cmp::Reverse(*unsent));
        for (unsent, attempt) in buffered {
            if on_their_way >= wanted {
                return;
            }
            on_their_way = on_their_way.saturating_add(unsent);
            self.cut(&attempt, false);
            self.send(&attempt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_a_note_never_change() {
        assert_eq!(encode_note(&Path::from("a/b.bytes"), "id"), &b"1\na/b.bytes\nid"[..]);
        for junk in [&b"1\na/b.bytes"[..], b"01\na\nb", b" 1\na\nb", b"1\n../a//b\nid", b"\n\n"] {
            assert_eq!(decode_note(junk), None, "{junk:?}");
        }
    }

    proptest! {
        #[test]
        fn notes_read_back_whatever_the_id_holds(name in "[a-zA-Z0-9._=-]{1,20}(/[a-zA-Z0-9._=-]{1,20}){0,4}", id in "[ -~\\n]{0,60}") {
            let Ok(path) = Path::parse(&name) else { return Ok(()) };
            prop_assert_eq!(decode_note(&encode_note(&path, &id)), Some((path, id)));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let _ = decode_note(&bytes);
        }
    }

    #[test]
    fn a_note_reads_back_and_anything_else_is_none() {
        let path = Path::from("a/b/0.0-0000000000000001-3-n.bytes");
        assert_eq!(decode_note(&encode_note(&path, "id\nwith line")), Some((path, "id\nwith line".to_owned())));
        for junk in [b"".as_slice(), b"2\na\nb", b"1\na", b"\xff\xfe", b"1"] {
            assert_eq!(decode_note(junk), None);
        }
    }
}
