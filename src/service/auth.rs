//! Tokens: one for the admin, one per job. Only SHA-256 hashes are kept, in memory and at rest, and
//! they are compared in constant time.

use super::calls::Need;
use super::error::{ServiceError, ServiceErrorKind, ServiceResult};
use super::registry::Slot;
use super::{PartitionService, RandomSource};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use store_api::JobId;
use subtle::ConstantTimeEq;

/// Shortest token that a client may choose, in characters.
pub const MIN_TOKEN_LENGTH: usize = 16;
/// Longest token that a client may choose, in characters.
pub const MAX_TOKEN_LENGTH: usize = 256;

/// The hash under which a token is kept.
#[must_use]
pub fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn is_same(one: &[u8; 32], two: &[u8; 32]) -> bool {
    bool::from(one.as_slice().ct_eq(two.as_slice()))
}

/// Errors: `BadRequest` for a token of the wrong length or with other than visible ASCII characters.
pub(super) fn check_token(token: &str) -> ServiceResult<()> {
    let is_long_enough = (MIN_TOKEN_LENGTH..=MAX_TOKEN_LENGTH).contains(&token.len());
    if !is_long_enough || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ServiceError::bad_request("a token has 16 to 256 visible ASCII characters"));
    }
    Ok(())
}

/// A new token: 256 random bits, in hexadecimal.
pub(super) fn draw_token(random: &dyn RandomSource) -> String {
    let mut token = String::with_capacity(64);
    for _ in 0..4 {
        // Writing to a string cannot fail.
        let _ = write!(token, "{:016x}", random.next_u64());
    }
    token
}

impl PartitionService {
    /// Whether tokens are on.
    #[must_use]
    pub const fn has_tokens(&self) -> bool {
        self.config.admin_token_hash.is_some()
    }

    /// Checks a bearer token against what a call needs. `Ok` at once when tokens are off.
    ///
    /// The admin token opens everything; a job's token opens that job, its take-over, and, after
    /// its end, the answers about its end. A token of a job that has ended does not open the job
    /// that has taken its id. To others than the admin a job that is not known looks like one whose
    /// token is another. Errors: `Unauthenticated` without a token and with one that is nobody's as
    /// far as this node knows (neither the admin's nor that of a job it keeps or has seen end),
    /// `Forbidden` with one that does not cover the call, `Unavailable` when the shared catalog had to be asked and does not answer.
    pub async fn authorize(&self, need: Need<'_>, bearer: Option<&str>) -> ServiceResult<()> {
        let Some(admin) = &self.config.admin_token_hash else { return Ok(()) };
        let bearer = bearer.filter(|token| !token.is_empty()).ok_or(ServiceErrorKind::Unauthenticated)?;
        let offered = hash_token(bearer);
        if is_same(&offered, admin) {
            return Ok(());
        }
        if let Need::PutJob(job) | Need::Job(job) = need
            && self.job_token_hash(job).await?.is_some_and(|stored| is_same(&offered, &stored))
        {
            return Ok(());
        }
        let is_known = self.registry.token_hashes().iter().any(|stored| is_same(&offered, stored));
        Err(if is_known { ServiceErrorKind::Forbidden } else { ServiceErrorKind::Unauthenticated }.into())
    }

    async fn job_token_hash(&self, job: &JobId) -> ServiceResult<Option<[u8; 32]>> {
        let hash = match self.registry.slot(job) {
            Some(Slot::Live(job)) => job.control.lock().token_hash,
            Some(Slot::Ended(ended)) if self.shared_catalog.is_none() => ended.token_hash,
            Some(Slot::Ended(ended)) => match self.adopt_shared_job(job).await? {
                Some(job) => job.control.lock().token_hash,
                None => ended.token_hash,
            },
            None => match self.adopt_shared_job(job).await? {
                Some(job) => job.control.lock().token_hash,
                None => None,
            },
        };
        Ok(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_odd_shapes_are_refused() {
        for token in ["", "short", "has a blank in it", "ümlaut-token-long-enough", &"x".repeat(257), "newline-in-token\n"] {
            assert!(check_token(token).is_err(), "{token:?} was accepted");
        }
        assert!(check_token(&"x".repeat(16)).is_ok());
        assert!(check_token(&"~".repeat(256)).is_ok());
    }

    #[test]
    fn a_drawn_token_is_one_that_a_client_might_have_chosen() {
        struct Counting(std::sync::atomic::AtomicU64);
        impl RandomSource for Counting {
            fn next_u64(&self) -> u64 {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
            }
        }
        let token = draw_token(&Counting(std::sync::atomic::AtomicU64::new(7)));
        assert!(check_token(&token).is_ok());
        assert_eq!(token.len(), 64);
    }
}
