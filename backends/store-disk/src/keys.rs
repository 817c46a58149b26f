//! Keys of the index. Ordered so that a job, a dataset and a partition are each one range.
//!
//! ```text
//!   job 0x00 | incarnation (8) | dataset 0x00 | partition (8) | generation (4) | attempt (4)
//! ```
//! Numbers are big-endian. Ids hold no 0x00, so no job is a prefix of another.

use store_api::{AttemptId, AttemptKey, DatasetId, DatasetKey, JobId, JobIncarnation, PartitionId, PartitionKey};

/// Every key of one incarnation of a job starts with this.
pub(crate) fn of_job(job: &JobId, incarnation: JobIncarnation) -> Vec<u8> {
    let mut key = Vec::with_capacity(96);
    key.extend_from_slice(job.as_str().as_bytes());
    key.push(0);
    key.extend_from_slice(&incarnation.get().to_be_bytes());
    key
}

/// Every key of a dataset starts with this.
pub(crate) fn of_dataset(dataset: &DatasetKey) -> Vec<u8> {
    let mut key = of_job(&dataset.job, dataset.incarnation);
    key.extend_from_slice(dataset.dataset.as_str().as_bytes());
    key.push(0);
    key
}

/// Every key of a partition starts with this.
pub(crate) fn of_partition(partition: &PartitionKey) -> Vec<u8> {
    let mut key = of_dataset(&partition.dataset);
    key.extend_from_slice(&partition.partition.get().to_be_bytes());
    key
}

/// First key of a generation and, so, the end of all lower ones.
pub(crate) fn of_generation(partition: &PartitionKey, generation: u32) -> Vec<u8> {
    let mut key = of_partition(partition);
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// The key of an attempt.
pub(crate) fn of_attempt(attempt: &AttemptKey) -> Vec<u8> {
    let mut key = of_generation(&attempt.partition, attempt.attempt.generation);
    key.extend_from_slice(&attempt.attempt.attempt.to_be_bytes());
    key
}

/// The first key after all that start with `prefix`.
pub(crate) fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    // Only for a prefix of 0xff alone, and ids hold none.
    vec![0xff; prefix.len() + 1]
}

/// Reads the key of an attempt; `None` when it is none.
pub(crate) fn decode(key: &[u8]) -> Option<AttemptKey> {
    let (job, rest) = split_text(key)?;
    let (incarnation, rest) = rest.split_first_chunk::<8>()?;
    let (dataset, rest) = split_text(rest)?;
    let (partition, rest) = rest.split_first_chunk::<8>()?;
    let (generation, rest) = rest.split_first_chunk::<4>()?;
    let (attempt, rest) = rest.split_first_chunk::<4>()?;
    if !rest.is_empty() {
        return None;
    }
    let dataset = DatasetKey {
        job: JobId::new(job).ok()?,
        incarnation: JobIncarnation::new(u64::from_be_bytes(*incarnation)),
        dataset: DatasetId::new(dataset).ok()?,
    };
    let attempt = AttemptId::new(u32::from_be_bytes(*generation), u32::from_be_bytes(*attempt));
    Some(dataset.partition(PartitionId::new(u64::from_be_bytes(*partition))).attempt(attempt))
}

fn split_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (text, rest) = bytes.split_at_checked(end)?;
    Some((std::str::from_utf8(text).ok()?, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(job: &str, incarnation: u64, dataset: &str, partition: u64, generation: u32, attempt: u32) -> AttemptKey {
        let dataset = DatasetKey {
            job: JobId::new(job).unwrap(),
            incarnation: JobIncarnation::new(incarnation),
            dataset: DatasetId::new(dataset).unwrap(),
        };
        dataset.partition(PartitionId::new(partition)).attempt(AttemptId::new(generation, attempt))
    }

    #[test]
    fn the_stored_bytes_never_change() {
        let stored = of_attempt(&key("j1", 0x0102, "d", 3, 4, 5));
        let golden = b"j1\0\0\0\0\0\0\0\x01\x02d\0\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0\x05";
        assert_eq!(stored, golden);
    }

    #[test]
    fn no_job_or_dataset_is_a_prefix_of_another() {
        let short = key("job", 1, "d", 0, 0, 0);
        for other in [key("job1", 1, "d", 0, 0, 0), key("job", 2, "d", 0, 0, 0), key("job", 1, "d1", 0, 0, 0), key("jo", 1, "d", 0, 0, 0)] {
            let other = of_attempt(&other);
            assert!(!other.starts_with(&of_dataset(&short.partition.dataset)));
        }
        assert!(!of_attempt(&key("job", 256, "d", 0, 0, 0)).starts_with(&of_job(short.job(), JobIncarnation::new(1))));
    }

    proptest! {
        #[test]
        fn keys_come_back_and_keep_their_order(
            one in ("[a-zA-Z0-9._-]{1,9}x", any::<u64>(), "[a-z]{1,5}", any::<u64>(), any::<u32>(), any::<u32>()),
            two in ("[a-zA-Z0-9._-]{1,9}x", any::<u64>(), "[a-z]{1,5}", any::<u64>(), any::<u32>(), any::<u32>()),
        ) {
            let one = key(&one.0, one.1, &one.2, one.3, one.4, one.5);
            let two = key(&two.0, two.1, &two.2, two.3, two.4, two.5);
            prop_assert_eq!(decode(&of_attempt(&one)), Some(one.clone()));
            prop_assert_eq!(of_attempt(&one).cmp(&of_attempt(&two)), one.cmp(&two));
            let range = of_partition(&one.partition);
            let stored = of_attempt(&one);
            prop_assert!(range < stored && stored < after(&range));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
