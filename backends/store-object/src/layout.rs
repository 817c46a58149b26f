//! Names of objects.
//!
//! ```text
//! {prefix}/v1/partitions/{job}/{incarnation}/=released                 the job was released
//! {prefix}/v1/partitions/{job}/{incarnation}/{dataset}/=released       the dataset was released
//! {prefix}/v1/partitions/{job}/{incarnation}/{dataset}/{partition}/
//!          {generation}.seal                       manifest or tombstone, first seal wins
//!          {generation}.{attempt}.seal             the same where the engine arbitrates
//!          {generation}.{attempt}-{life}-{number}-{node}.bytes       content
//! {prefix}/v1/uploads/{node}/{life}/{number}       a multipart upload that is under way
//! {prefix}/v1/probe/{node}/{life}                  scratch key of the probe
//! {prefix}/v1/catalog/…                            the shared catalog
//! ```
//! Incarnation and generation are in every key, so that a name is never used for other content; the
//! name of content also holds the attempt and the node's life. Ids hold no `=`, so a marker never
//! meets a dataset. No name is both an object and the parent of another, as directories need it.

use object_store::path::Path;
use store_api::{AttemptId, AttemptKey, DatasetId, DatasetKey, JobId, JobIncarnation, NodeId, NodeLife, PartitionId, PartitionKey};

/// Version of the layout, part of every name.
const LAYOUT: &str = "v1";
const MARKER: &str = "=released";

/// Makes and reads names under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: String,
}

/// Which piece of content: unique per attempt, node and life of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContentName {
    /// The attempt.
    pub(crate) attempt: AttemptKey,
    /// Who wrote it.
    pub(crate) node: NodeId,
    /// In which life.
    pub(crate) life: NodeLife,
    /// Drawn by the writer, once per object.
    pub(crate) number: u64,
}

/// What a name under a job says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    /// A manifest or tombstone.
    Seal {
        /// The partition.
        partition: PartitionKey,
        /// The generation.
        generation: u32,
        /// The attempt, where the engine arbitrates.
        attempt: Option<u32>,
    },
    /// Content.
    Content(ContentName),
    /// The marker of a released job or dataset.
    Marker,
}

impl Layout {
    /// Names under `prefix`.
    pub(crate) fn new(prefix: &str) -> Self {
        let root = prefix.trim_matches('/');
        Self { root: if root.is_empty() { LAYOUT.to_owned() } else { format!("{root}/{LAYOUT}") } }
    }

    fn path(&self, rest: std::fmt::Arguments<'_>) -> Path {
        Path::from(format!("{}/{rest}", self.root))
    }

    /// Everything of all jobs.
    pub(crate) fn partitions(&self) -> Path {
        self.path(format_args!("partitions"))
    }

    /// Everything of one incarnation of a job.
    pub(crate) fn job(&self, job: &JobId, incarnation: JobIncarnation) -> Path {
        self.path(format_args!("partitions/{job}/{incarnation}"))
    }

    /// Everything of a dataset.
    pub(crate) fn dataset(&self, key: &DatasetKey) -> Path {
        self.path(format_args!("partitions/{}/{}/{}", key.job, key.incarnation, key.dataset))
    }

    /// Says that the job was released.
    pub(crate) fn job_marker(&self, job: &JobId, incarnation: JobIncarnation) -> Path {
        self.path(format_args!("partitions/{job}/{incarnation}/{MARKER}"))
    }

    /// Says that the dataset was released.
    pub(crate) fn dataset_marker(&self, key: &DatasetKey) -> Path {
        self.path(format_args!("partitions/{}/{}/{}/{MARKER}", key.job, key.incarnation, key.dataset))
    }

    fn in_partition(&self, key: &PartitionKey, name: std::fmt::Arguments<'_>) -> Path {
        let dataset = &key.dataset;
        self.path(format_args!("partitions/{}/{}/{}/{}/{name}", dataset.job, dataset.incarnation, dataset.dataset, key.partition))
    }

    /// The manifest of a generation, for which all its attempts compete.
    pub(crate) fn generation_seal(&self, key: &PartitionKey, generation: u32) -> Path {
        self.in_partition(key, format_args!("{generation}.seal"))
    }

    /// The manifest of one attempt.
    pub(crate) fn attempt_seal(&self, key: &AttemptKey) -> Path {
        self.in_partition(&key.partition, format_args!("{}.seal", key.attempt))
    }

    /// A piece of content.
    pub(crate) fn content(&self, name: &ContentName) -> Path {
        let ContentName { attempt, node, life, number } = name;
        self.in_partition(&attempt.partition, format_args!("{}-{life}-{number}-{node}.bytes", attempt.attempt))
    }

    /// The notes about multipart uploads of a node, all lives.
    pub(crate) fn uploads(&self, node: &NodeId) -> Path {
        self.path(format_args!("uploads/{node}"))
    }

    /// The notes about multipart uploads of one life of a node.
    pub(crate) fn uploads_of_life(&self, node: &NodeId, life: NodeLife) -> Path {
        self.path(format_args!("uploads/{node}/{life}"))
    }

    /// The note about one multipart upload.
    pub(crate) fn upload(&self, node: &NodeId, life: NodeLife, number: u64) -> Path {
        self.path(format_args!("uploads/{node}/{life}/{number}"))
    }

    /// The scratch key of the probe.
    pub(crate) fn probe(&self, node: &NodeId, life: NodeLife) -> Path {
        self.path(format_args!("probe/{node}/{life}"))
    }

    /// Parent of the catalog's entries.
    pub(crate) fn catalog(&self) -> String {
        format!("{}/catalog", self.root)
    }

    /// Reads a name below [`Layout::partitions`]; `None` when it is none of ours. A number that is
    /// written otherwise than we write it makes a name that is not ours.
    pub(crate) fn parse(&self, path: &Path) -> Option<Name> {
        let name = self.read(path)?;
        let is_ours = match &name {
            Name::Seal { partition, generation, attempt: None } => self.generation_seal(partition, *generation) == *path,
            Name::Seal { partition, generation, attempt: Some(attempt) } => {
                self.attempt_seal(&partition.attempt(AttemptId::new(*generation, *attempt))) == *path
            }
            Name::Content(content) => self.content(content) == *path,
            Name::Marker => true,
        };
        is_ours.then_some(name)
    }

    fn read(&self, path: &Path) -> Option<Name> {
        let rest = path.as_ref().strip_prefix(self.root.as_str())?.strip_prefix("/partitions/")?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts.as_slice() {
            [_, _, MARKER] | [_, _, _, MARKER] => Some(Name::Marker),
            [job, incarnation, dataset, partition, name] => {
                let dataset = DatasetKey {
                    job: JobId::new(job).ok()?,
                    incarnation: incarnation.parse().ok()?,
                    dataset: DatasetId::new(dataset).ok()?,
                };
                let partition: PartitionId = partition.parse().ok()?;
                parse_in_partition(dataset.partition(partition), name)
            }
            _ => None,
        }
    }
}

fn parse_in_partition(partition: PartitionKey, name: &str) -> Option<Name> {
    if let Some(stem) = name.strip_suffix(".seal") {
        return match stem.parse::<AttemptId>() {
            Ok(id) => Some(Name::Seal { partition, generation: id.generation, attempt: Some(id.attempt) }),
            Err(_) => Some(Name::Seal { partition, generation: number(stem)?, attempt: None }),
        };
    }
    let mut parts = name.strip_suffix(".bytes")?.splitn(4, '-');
    let attempt: AttemptId = parts.next()?.parse().ok()?;
    let life: NodeLife = parts.next()?.parse().ok()?;
    let number = store_api::ids::parse_decimal(parts.next()?)?;
    let node = NodeId::new(parts.next()?).ok()?;
    Some(Name::Content(ContentName { attempt: partition.attempt(attempt), node, life, number }))
}

fn number(text: &str) -> Option<u32> {
    store_api::ids::parse_decimal(text).and_then(|number| u32::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attempt(job: &str, dataset: &str, partition: u64, generation: u32, number: u32) -> Option<AttemptKey> {
        let key = DatasetKey { job: JobId::new(job).ok()?, incarnation: JobIncarnation::new(7), dataset: DatasetId::new(dataset).ok()? };
        Some(key.partition(PartitionId::new(partition)).attempt(AttemptId::new(generation, number)))
    }

    proptest! {
        #[test]
        fn names_read_back_as_what_they_were_made_of(
            job in "[A-Za-z0-9._-]{1,128}", dataset in "[A-Za-z0-9._-]{1,128}", node in "[A-Za-z0-9._-]{1,128}",
            partition: u64, generation: u32, number: u32, life: u64, object: u64, prefix in "(|a|a/b)",
        ) {
            let (Some(attempt), Ok(node)) = (attempt(&job, &dataset, partition, generation, number), NodeId::new(&node)) else { return Ok(()) };
            let layout = Layout::new(&prefix);
            let name = ContentName { attempt: attempt.clone(), node, life: NodeLife::new(life), number: object };
            let path = layout.content(&name);
            prop_assert!(path.as_ref().len() <= 1024);
            prop_assert!(path.prefix_matches(&layout.job(attempt.job(), JobIncarnation::new(7))));
            prop_assert_eq!(layout.parse(&path), Some(Name::Content(name)));
            let seal = layout.generation_seal(&attempt.partition, generation);
            prop_assert_eq!(layout.parse(&seal), Some(Name::Seal { partition: attempt.partition.clone(), generation, attempt: None }));
            let seal = layout.attempt_seal(&attempt);
            prop_assert_eq!(layout.parse(&seal), Some(Name::Seal { partition: attempt.partition.clone(), generation, attempt: Some(number) }));
            prop_assert_eq!(layout.parse(&layout.dataset_marker(&attempt.partition.dataset)), Some(Name::Marker));
        }
    }

    #[test]
    fn a_job_is_no_prefix_of_another_whose_id_starts_alike() {
        let layout = Layout::new("x");
        let one = layout.job(&JobId::new("job").unwrap(), JobIncarnation::new(1));
        let other = attempt("job-2", "d", 0, 0, 0).unwrap();
        assert!(!layout.attempt_seal(&other).prefix_matches(&one));
    }

    #[test]
    fn the_names_of_objects_never_change() {
        let layout = Layout::new("/some/prefix/");
        let key = attempt("job-1", "d.x", 3, 4, 5).unwrap();
        let (node, life) = (NodeId::new("n_1").unwrap(), NodeLife::new(0xabc));
        let partition = "some/prefix/v1/partitions/job-1/0000000000000007/d.x/3";
        assert_eq!(layout.generation_seal(&key.partition, 4).as_ref(), format!("{partition}/4.seal"));
        assert_eq!(layout.attempt_seal(&key).as_ref(), format!("{partition}/4.5.seal"));
        let name = ContentName { attempt: key.clone(), node: node.clone(), life, number: 9 };
        assert_eq!(layout.content(&name).as_ref(), format!("{partition}/4.5-0000000000000abc-9-n_1.bytes"));
        let marker = "some/prefix/v1/partitions/job-1/0000000000000007/=released";
        assert_eq!(layout.job_marker(key.job(), JobIncarnation::new(7)).as_ref(), marker);
        let marker = "some/prefix/v1/partitions/job-1/0000000000000007/d.x/=released";
        assert_eq!(layout.dataset_marker(&key.partition.dataset).as_ref(), marker);
        assert_eq!(layout.upload(&node, life, 9).as_ref(), "some/prefix/v1/uploads/n_1/0000000000000abc/9");
        assert_eq!(layout.probe(&node, life).as_ref(), "some/prefix/v1/probe/n_1/0000000000000abc");
        assert_eq!(layout.catalog(), "some/prefix/v1/catalog");
        assert_eq!(Layout::new("").generation_seal(&key.partition, 0).as_ref(), "v1/partitions/job-1/0000000000000007/d.x/3/0.seal");
    }

    #[test]
    fn numbers_written_otherwise_are_not_taken_for_ours() {
        let layout = Layout::new("x");
        let partition = "x/v1/partitions/j/0000000000000001/d";
        for name in
            ["0/+1.seal", "0/01.seal", "0/4294967296.seal", "0/1.2.3.seal", "0/1.-2.seal", "+0/1.seal", "00/1.seal", "0/1.sea", "0/.seal"]
        {
            assert_eq!(layout.parse(&Path::from(format!("{partition}/{name}"))), None, "{name}");
        }
        for name in
            ["0/1.2-1-3-n.bytes", "0/1.2-0000000000000001--n.bytes", "0/1.2-0000000000000001-3-.bytes", "0/1-0000000000000001-3-n.bytes"]
        {
            assert_eq!(layout.parse(&Path::from(format!("{partition}/{name}"))), None, "{name}");
        }
    }

    #[test]
    fn foreign_names_are_not_taken_for_ours() {
        let layout = Layout::new("x");
        for name in ["x/v1/partitions/j/1/d/0/0.seal", "x/v1/catalog/a", "y", "x/v1/partitions/j/0000000000000001/d/0/zero.seal"] {
            assert_eq!(layout.parse(&Path::from(name)), None, "{name}");
        }
    }
}
