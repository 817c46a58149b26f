//! Finds out, on a scratch key, what conditional puts are worth on this object store.
//!
//! Stores differ, and "no error" proves nothing: some honour conditions, some answer that they do
//! not know them, some ignore them silently, and some refuse a correct one.
//!
//! | seen | create | update |
//! |---|---|---|
//! | second create refused, first content kept; stale version refused, right one taken | works | works |
//! | the operation is answered as not implemented | refused | refused |
//! | the second create, or the stale update, succeeds | ignored | ignored |
//! | the update with the right version is refused | – | refused |

use crate::bucket::Bucket;
use crate::error::{BucketError, Fault};
use bytes::Bytes;
use object_store::UpdateVersion;
use object_store::path::Path;

/// What a conditional operation is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It is honoured.
    Works,
    /// It is answered with success and not honoured.
    Ignored,
    /// It is answered with an error although its condition holds, or not known.
    Refused,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probed {
    /// Puts that must create the object.
    pub create: Support,
    /// Puts that must find a version of the object.
    pub update: Support,
}

impl Probed {
    /// Why seals cannot be arbitrated by this store; `None` when they can.
    #[must_use]
    pub const fn refusal(&self) -> Option<&'static str> {
        match self.create {
            Support::Works => None,
            Support::Ignored => Some(
                "the object store ignores conditional puts (a second create of the same key succeeded), so two seals could both win; \
                 durable partitions on it need a coordinator that arbitrates",
            ),
            Support::Refused => Some(
                "the object store refuses conditional puts, so it cannot decide which seal is first; \
                 durable partitions on it need a coordinator that arbitrates",
            ),
        }
    }
}

/// Asks the object store. The scratch key is deleted afterwards. Errors: whatever keeps the
/// questions from being asked.
pub(crate) async fn probe(bucket: &Bucket, scratch: &Path) -> Result<Probed, BucketError> {
    let first = Bytes::from(format!("probe of {scratch}: first"));
    let second = Bytes::from(format!("probe of {scratch}: second"));
    bucket.delete(std::slice::from_ref(scratch)).await?;
    let create = probe_create(bucket, scratch, &first, &second).await?;
    let update = match create {
        Support::Works => probe_update(bucket, scratch, &first, &second).await?,
        Support::Ignored | Support::Refused => Support::Refused,
    };
    bucket.delete(std::slice::from_ref(scratch)).await?;
    Ok(Probed { create, update })
}

/// Whether a refusal means "not honoured" rather than "cannot be asked now".
fn is_refusal(error: &BucketError) -> bool {
    matches!(error.fault, Fault::Unsupported | Fault::Permanent | Fault::Exists | Fault::Missing)
}

async fn probe_create(bucket: &Bucket, scratch: &Path, first: &Bytes, second: &Bytes) -> Result<Support, BucketError> {
    match bucket.put_create(scratch, first.clone().into()).await {
        // Created, or created and the reply lost: the content tells.
        Ok(_) => {}
        Err(error) if error.fault == Fault::Exists => {}
        Err(error) if is_refusal(&error) => return Ok(Support::Refused),
        Err(error) => return Err(error),
    }
    let refused = match bucket.put_create(scratch, second.clone().into()).await {
        Ok(_) => false,
        Err(error) if error.fault == Fault::Exists => true,
        Err(error) if is_refusal(&error) => return Ok(Support::Refused),
        Err(error) => return Err(error),
    };
    let Some((content, _)) = bucket.fetch(scratch).await? else { return Ok(Support::Refused) };
    Ok(if refused && content == *first { Support::Works } else { Support::Ignored })
}

async fn probe_update(bucket: &Bucket, scratch: &Path, first: &Bytes, second: &Bytes) -> Result<Support, BucketError> {
    let Some((_, version)) = bucket.fetch(scratch).await? else { return Ok(Support::Refused) };
    if version.e_tag.is_none() && version.version.is_none() {
        return Ok(Support::Refused);
    }
    let stale: UpdateVersion = version.clone();
    match bucket.put_update(scratch, second.clone().into(), version).await {
        Ok(_) => {}
        Err(error) if is_refusal(&error) => return Ok(Support::Refused),
        Err(error) => return Err(error),
    }
    match bucket.put_update(scratch, first.clone().into(), stale).await {
        Ok(_) => return Ok(Support::Ignored),
        Err(error) if is_refusal(&error) => {}
        Err(error) => return Err(error),
    }
    let kept = bucket.fetch(scratch).await?.is_some_and(|(content, _)| content == *second);
    Ok(if kept { Support::Works } else { Support::Ignored })
}
