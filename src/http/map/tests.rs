//! Documents there and back.

use super::*;
use forebay_protocol::ErrorCode;
use proptest::prelude::*;
use std::sync::Arc;
use store_api::{Digest, Durability, JobId, NodeId, NodeLife, Scope, SealManifest, SyncLevel};

fn view(n: u32, filled: &[(u32, u64)]) -> domain::ManifestView {
    let entries =
        filled.iter().map(|(index, length)| (SubpartitionIndex::new(*index), Digest { length: *length, crc: Crc32c::new(*index + 1) }));
    let dataset = store_api::DatasetKey {
        job: JobId::new("q1").expect("an id"),
        incarnation: store_api::JobIncarnation::new(1),
        dataset: DatasetId::new("d").expect("an id"),
    };
    let class = ClassAchieved { class: StoreClass::Blocking, durability: Durability::Local, sync: SyncLevel::Full, scope: Scope::NodeDisk };
    let node = NodeId::new("n1").expect("an id");
    let life = NodeLife::new(7);
    let manifest = SealManifest {
        attempt: dataset.partition(PartitionId::new(5)).attempt(AttemptId::new(1, 2)),
        table: SubpartitionTable::new(n, entries).expect("a table"),
        class,
        node: node.clone(),
        life,
        sealed_at_ms: 9,
    };
    domain::ManifestView { manifest: Arc::new(manifest), location: domain::Location { node, life, url: Arc::from("http://n1:7440") } }
}

fn item(subpartition: u32, n_subpartitions: u32) -> reads::FetchItem {
    reads::FetchItem { partition: 0, subpartition, n_subpartitions, from: 0, to: None, attempt: None }
}

fn code<T>(answer: Answer<T>) -> Option<ErrorCode> {
    answer.err().map(|refusal| refusal.problem().code)
}

#[test]
fn a_manifest_names_only_what_it_holds_when_most_is_empty() {
    let lists = manifest(&view(1000, &[(3, 4096), (999, 1)]), true).subpartitions.expect("lists");
    assert_eq!(lists.indices, Some(vec![3, 999]));
    assert_eq!(lists.lengths, [4096, 1]);
    assert_eq!(lists.crcs, Some(vec![4, 1000]));
}

#[test]
fn a_manifest_lists_everything_when_most_is_filled() {
    let lists = manifest(&view(3, &[(0, 5), (2, 6)]), true).subpartitions.expect("lists");
    assert_eq!(lists.indices, None);
    assert_eq!(lists.lengths, [5, 0, 6]);
    assert_eq!(lists.crcs, Some(vec![1, 0, 3]));
}

#[test]
fn a_manifest_without_lists_still_has_their_sum_and_fingerprint() {
    let document = manifest(&view(3, &[(0, 5), (2, 6)]), false);
    assert_eq!((document.total_bytes, document.subpartitions), (11, None));
    assert_eq!(document.fingerprint.len(), 8);
    assert_eq!((document.partition, document.attempt.as_str()), (5, "1.2"));
}

#[test]
fn items_are_counted_out_in_order() {
    let wants = fetch_wants(&[item(7, 2), item(0, 1)], 10).expect("wants");
    assert_eq!(wants.iter().map(|want| want.subpartition.get()).collect::<Vec<_>>(), [7, 8, 0]);
}

#[test]
fn items_that_cannot_be_meant_are_refused() {
    assert_eq!(code(fetch_wants(&[item(0, 0)], 10)), Some(ErrorCode::BadRequest));
    assert_eq!(code(fetch_wants(&[item(u32::MAX, 2)], 10)), Some(ErrorCode::BadRequest));
    assert_eq!(code(fetch_wants(&[item(0, 11)], 10)), Some(ErrorCode::TooLarge));
    assert_eq!(code(fetch_wants(&[item(0, u32::MAX), item(0, u32::MAX)], 10)), Some(ErrorCode::TooLarge), "counts add up");
    let odd = reads::FetchItem { attempt: Some("x".to_owned()), ..item(0, 1) };
    assert_eq!(code(fetch_wants(&[odd], 10)), Some(ErrorCode::BadRequest));
}

#[test]
fn a_page_cursor_reads_back() {
    assert_eq!(page_cursor("5/1.2").ok(), Some((PartitionId::new(5), AttemptId::new(1, 2))));
    assert_eq!(page_cursor("5").ok().map(|(partition, _)| partition), Some(PartitionId::new(5)));
    for text in ["", "/", "5/", "x", "5/1", "5/1.2/3", "-1"] {
        assert_eq!(code(page_cursor(text)), Some(ErrorCode::BadRequest), "{text:?}");
    }
}

#[test]
fn a_run_of_no_partitions_is_refused() {
    let none = reads::AvailabilityItem { dataset: "d".to_owned(), partition: 0, n_partitions: 0, subpartition: None };
    assert_eq!(code(availability_wants(&[none])), Some(ErrorCode::BadRequest));
}

#[test]
fn kinds_and_retentions_keep_their_names_both_ways() {
    for kind in [datasets::Kind::Pipelined, datasets::Kind::Blocking, datasets::Kind::Durable] {
        assert_eq!(kind_of(class_of(kind)), kind);
    }
    use datasets::RetentionName as R;
    for name in [R::UntilAcknowledged, R::BestEffort, R::SinceCheckpoint] {
        assert_eq!(retention_name(retention_of(name)), name);
    }
}

proptest! {
    #[test]
    fn lists_say_what_the_table_says(lengths in proptest::collection::vec(0_u64..3, 1..40)) {
        let filled: Vec<(u32, u64)> = (0..).zip(lengths.iter().copied()).collect();
        let n = u32::try_from(lengths.len()).expect("small");
        let lists = manifest(&view(n, &filled), true).subpartitions.expect("lists");
        let mut read = vec![0; lengths.len()];
        let indices = lists.indices.unwrap_or_else(|| (0..n).collect());
        for (index, length) in indices.iter().zip(&lists.lengths) {
            read[*index as usize] = *length;
        }
        prop_assert_eq!(read, lengths);
    }
}
