//! Offsets, ranges and clipped reads against arithmetic that cannot overflow.

use crate::store::clip_range;
use crate::{
    AttemptId, AttemptKey, DatasetId, DatasetKey, JobId, JobIncarnation, Offset, OffsetRange, PartitionId, ReadMode, ReadRequest,
    StoreErrorKind, SubpartitionIndex,
};
use proptest::prelude::*;

/// Values next to which arithmetic goes wrong: signs, 32 bits, 53 bits, 63 bits, the top.
const EDGES: [u64; 19] = [
    0,
    1,
    2,
    9,
    10,
    11,
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 1,
    (1 << 32) - 1,
    1 << 32,
    (1 << 32) + 1,
    (1 << 53) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 63) + 1,
    u64::MAX - 2,
    u64::MAX - 1,
    u64::MAX,
];

fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![3 => proptest::sample::select(EDGES.to_vec()), 1 => any::<u64>(), 1 => 0_u64..40]
}

fn attempt() -> AttemptKey {
    let dataset = DatasetKey { job: JobId::new("j").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
    dataset.partition(PartitionId::new(0)).attempt(AttemptId::new(0, 0))
}

fn request(start: u64, end: Option<u64>) -> ReadRequest {
    ReadRequest {
        attempt: attempt(),
        subpartition: SubpartitionIndex::new(0),
        start: Offset::new(start),
        end: end.map(Offset::new),
        mode: ReadMode::Sealed,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sums_and_distances_are_those_of_wider_numbers(one in edge(), two in edge()) {
        let sum = u128::from(one) + u128::from(two);
        prop_assert_eq!(Offset::new(one).checked_add(two).map(Offset::get), u64::try_from(sum).ok());
        let distance = u128::from(one).saturating_sub(u128::from(two));
        prop_assert_eq!(u128::from(Offset::new(one).since(Offset::new(two))), distance);
        let range = OffsetRange::at(Offset::new(one), two);
        prop_assert_eq!(range.map(|range| (range.start().get(), range.length())), u64::try_from(sum).ok().map(|_| (one, two)));
        prop_assert_eq!(OffsetRange::new(Offset::new(one), Offset::new(two)).is_some(), one <= two);
    }

    #[test]
    fn an_intersection_holds_exactly_the_bytes_of_both(ends in proptest::array::uniform4(edge()), probe in edge()) {
        let range = |one: u64, two: u64| OffsetRange::new(Offset::new(one.min(two)), Offset::new(one.max(two))).unwrap();
        let (one, two) = (range(ends[0], ends[1]), range(ends[2], ends[3]));
        let holds = |range: OffsetRange, at: u64| range.start().get() <= at && at < range.end().get();
        let both = one.intersect(two);
        for at in [probe, ends[0], ends[1], ends[2], ends[3], ends[0].saturating_sub(1), ends[3].saturating_sub(1)] {
            prop_assert_eq!(both.is_some_and(|both| holds(both, at)), holds(one, at) && holds(two, at), "{} of {} and {}", at, one, two);
        }
        prop_assert!(both.is_none_or(|both| !both.is_empty()));
    }

    /// A read is never given bytes it did not ask for, none below the floor, none after the tail,
    /// and no answer when it starts outside of what is held.
    #[test]
    fn a_clipped_read_is_what_was_asked_for_inside_what_is_held(
        bounds in (edge(), edge()), start in edge(), end in proptest::option::of(edge()),
    ) {
        let (floor, tail) = (bounds.0.min(bounds.1), bounds.0.max(bounds.1));
        let clipped = clip_range(&request(start, end), Offset::new(floor), Offset::new(tail));
        match clipped {
            Ok(range) => {
                prop_assert!(floor <= start && start <= tail);
                prop_assert_eq!(range.start().get(), start);
                let wanted = end.unwrap_or(u64::MAX).min(tail).max(start);
                prop_assert_eq!(range.end().get(), wanted);
            }
            Err(error) => match *error.kind() {
                StoreErrorKind::BelowFloor { floor: told } => prop_assert!(start < floor && told.get() == floor),
                StoreErrorKind::BeyondEnd { end: told } => prop_assert!(start > tail && told.get() == tail),
                ref other => return Err(TestCaseError::fail(format!("{other:?}"))),
            },
        }
    }
}

#[test]
fn the_last_offset_is_never_taken_for_the_first() {
    let top = Offset::new(u64::MAX);
    for (floor, tail) in [(0, 0), (0, 10), (5, 10), (0, u64::MAX - 1)] {
        let refused = clip_range(&request(u64::MAX, None), Offset::new(floor), Offset::new(tail)).unwrap_err();
        assert_eq!(*refused.kind(), StoreErrorKind::BeyondEnd { end: Offset::new(tail) });
    }
    let at_the_top = clip_range(&request(u64::MAX, Some(u64::MAX)), top, top).unwrap();
    assert!(at_the_top.is_empty());
    let to_the_top = clip_range(&request(u64::MAX - 1, Some(u64::MAX)), Offset::ZERO, top).unwrap();
    assert_eq!(to_the_top.length(), 1);
}

#[test]
fn every_range_of_an_empty_and_of_a_tiny_content_is_answered() {
    for length in [0_u64, 1, 10] {
        for start in 0..12 {
            for end in (0..12).map(Some).chain([None]) {
                let clipped = clip_range(&request(start, end), Offset::ZERO, Offset::new(length));
                let wanted = (start <= length).then(|| end.unwrap_or(length).min(length).saturating_sub(start));
                assert_eq!(clipped.ok().map(OffsetRange::length), wanted, "[{start}, {end:?}) of {length}");
            }
        }
    }
}
