//! What a command is about: `JOB[/DATASET[/PARTITION[/SUBPARTITION]]]`.

use std::str::FromStr;
use store_api::{DatasetId, JobId, PartitionId, SubpartitionIndex};

/// A job, or something in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) job: JobId,
    pub(super) dataset: Option<DatasetId>,
    pub(super) partition: Option<PartitionId>,
    pub(super) subpartition: Option<SubpartitionIndex>,
}

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('/');
        let job = parts.next().unwrap_or_default();
        let target = Self {
            job: job.parse().map_err(|error| format!("job {job:?}: {error}"))?,
            dataset: parse_part(parts.next(), "dataset")?,
            partition: parse_part(parts.next(), "partition")?,
            subpartition: parse_part(parts.next(), "subpartition")?,
        };
        if parts.next().is_some() { Err("more parts than JOB/DATASET/PARTITION/SUBPARTITION".to_owned()) } else { Ok(target) }
    }
}

fn parse_part<T: FromStr<Err: std::fmt::Display>>(part: Option<&str>, name: &str) -> Result<Option<T>, String> {
    part.map(|part| part.parse().map_err(|error| format!("{name} {part:?}: {error}"))).transpose()
}

/// A subpartition: `JOB/DATASET/PARTITION[/SUBPARTITION]`, 0 when it is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentTarget {
    pub(super) job: JobId,
    pub(super) dataset: DatasetId,
    pub(super) partition: PartitionId,
    pub(super) subpartition: SubpartitionIndex,
}

impl FromStr for ContentTarget {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let target: Target = text.parse()?;
        let Target { job, dataset: Some(dataset), partition: Some(partition), subpartition } = target else {
            return Err("names no partition: JOB/DATASET/PARTITION[/SUBPARTITION]".to_owned());
        };
        Ok(Self { job, dataset, partition, subpartition: subpartition.unwrap_or(SubpartitionIndex::new(0)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_in_their_order() {
        let target: Target = "j/d/3/4".parse().unwrap();
        assert_eq!(
            (target.job.as_str(), target.partition, target.subpartition.map(SubpartitionIndex::get)),
            ("j", Some(PartitionId::new(3)), Some(4))
        );
        assert_eq!("j".parse::<Target>().unwrap().dataset, None);
        assert_eq!("j/d/3".parse::<ContentTarget>().unwrap().subpartition, SubpartitionIndex::new(0));
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in ["", "/", "j/", "j//1", "j/d/x", "j/d/1/-1", "j/d/1/2/3", "../x", "j/d/18446744073709551616"] {
            assert!(text.parse::<Target>().is_err(), "{text:?} was accepted");
        }
        for text in ["j", "j/d"] {
            assert!(text.parse::<ContentTarget>().is_err(), "{text:?} was accepted");
        }
    }
}
