//! How far each subpartition has been read, so that bytes read again can be told from bytes read
//! for the first time. Bounded: the oldest marks are forgotten first, and their next read counts as
//! a first one.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use store_api::{AttemptKey, SubpartitionIndex};

type Place = (AttemptKey, SubpartitionIndex);

/// First offset that was never handed out, per subpartition of an attempt.
#[derive(Debug)]
pub(super) struct ReadMarks {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    marks: HashMap<Place, u64>,
    order: VecDeque<Place>,
}

impl ReadMarks {
    /// At most `capacity` marks.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, inner: Mutex::default() }
    }

    /// The mark of a subpartition; 0 when it is not known.
    pub(super) fn mark(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> u64 {
        self.inner.lock().marks.get(&(attempt.clone(), subpartition)).copied().unwrap_or(0)
    }

    /// Moves a mark up to `offset`; never down.
    pub(super) fn raise(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex, offset: u64) {
        if offset == 0 {
            return;
        }
        let place = (attempt.clone(), subpartition);
        let mut inner = self.inner.lock();
        if let Some(mark) = inner.marks.get_mut(&place) {
            *mark = offset.max(*mark);
            return;
        }
        if inner.marks.len() >= self.capacity
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.marks.remove(&oldest);
        }
        inner.order.push_back(place.clone());
        inner.marks.insert(place, offset);
    }
}

/// How many of the bytes `[start, start + length)` lie below the mark.
pub(super) fn below(mark: u64, start: u64, length: u64) -> u64 {
    mark.saturating_sub(start).min(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::tests::attempt_key;

    #[test]
    fn marks_rise_and_never_fall() {
        let (marks, key, one) = (ReadMarks::new(10), attempt_key(0), SubpartitionIndex::new(1));
        assert_eq!(marks.mark(&key, one), 0);
        marks.raise(&key, one, 10);
        marks.raise(&key, one, 5);
        assert_eq!(marks.mark(&key, one), 10);
        assert_eq!(marks.mark(&key, SubpartitionIndex::new(0)), 0);
    }

    #[test]
    fn there_are_never_more_marks_than_room() {
        let marks = ReadMarks::new(3);
        for partition in 0..100 {
            marks.raise(&attempt_key(partition), SubpartitionIndex::new(0), 1);
        }
        let inner = marks.inner.lock();
        assert_eq!((inner.marks.len(), inner.order.len()), (3, 3));
    }

    #[test]
    fn bytes_on_both_sides_of_the_mark_are_told_apart() {
        for (mark, start, length, again) in [(0, 0, 10, 0), (10, 0, 10, 10), (4, 0, 10, 4), (4, 4, 10, 0), (4, 9, 10, 0), (20, 5, 10, 10)] {
            assert_eq!(below(mark, start, length), again, "mark {mark}, [{start}, +{length})");
        }
    }
}
