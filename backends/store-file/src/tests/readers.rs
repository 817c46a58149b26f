//! Exact reads and the cache of open files, from one thread and from many.

use crate::{FileErrorKind, FileReader, OpenFiles};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn content(number: usize) -> Vec<u8> {
    (0..200).map(|at| u8::try_from((number * 7 + at * 3) % 251).unwrap()).collect()
}

proptest! {
    #[test]
    fn a_read_gives_exactly_its_range_or_says_that_the_file_is_short(
        length in 0_usize..300, offset in prop_oneof![0_u64..320, Just(u64::MAX), Just(u64::MAX - 5)], wanted in 0_usize..320,
    ) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let held: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap() | 1).collect();
        std::fs::write(&path, &held).unwrap();
        let read = FileReader::open(&path).unwrap().read_exact_at(offset, wanted);
        let range = usize::try_from(offset).ok().and_then(|from| Some((from, from.checked_add(wanted)?)));
        match range.and_then(|(from, to)| held.get(from..to)) {
            Some(expected) => prop_assert_eq!(read.unwrap(), expected),
            None => prop_assert_eq!(read.unwrap_err().kind, FileErrorKind::Short),
        }
    }

    /// The files that stay open are those used last, and never more than allowed.
    #[test]
    fn the_cache_keeps_those_used_last(capacity in 0_usize..5, uses in proptest::collection::vec((0_usize..8, 0_u8..8), 1..60)) {
        let root = tempfile::tempdir().unwrap();
        let path = |number: usize| root.path().join(number.to_string());
        for number in 0..8 {
            std::fs::write(path(number), content(number)).unwrap();
        }
        let open = OpenFiles::new(capacity);
        // Newest last.
        let mut order: Vec<usize> = Vec::new();
        for (number, what) in uses {
            let was_open = order.contains(&number);
            order.retain(|other| *other != number);
            if what == 0 {
                prop_assert_eq!(open.forget(&path(number)), was_open);
            } else {
                prop_assert_eq!(open.open(&path(number)).unwrap().read_exact_at(0, 200).unwrap(), &content(number)[..]);
                order.push(number);
                if order.len() > capacity.max(1) {
                    order.remove(0);
                }
            }
            prop_assert_eq!(open.n_open(), order.len());
        }
        for number in 0..8 {
            prop_assert_eq!(open.forget(&path(number)), order.contains(&number), "{} of {:?}", number, order);
        }
    }
}

#[test]
fn threads_that_read_many_files_over_few_descriptors_all_get_right_bytes() {
    let root = tempfile::tempdir().unwrap();
    let path = |number: usize| root.path().join(number.to_string());
    for number in 0..30 {
        std::fs::write(path(number), content(number)).unwrap();
    }
    let open = OpenFiles::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (open, path) = (&open, &path);
            scope.spawn(move || {
                for round in 0..3000 {
                    let number = (round * 7 + thread * 11 + round / 3) % 30;
                    let reader = open.open(&path(number)).unwrap();
                    assert_eq!(reader.path(), path(number));
                    let from = round % 150;
                    assert_eq!(reader.read_exact_at(from as u64, 50).unwrap(), &content(number)[from..from + 50]);
                    assert!(open.n_open() <= 4);
                }
            });
        }
    });
}

/// A read that opens a file just while it is removed must not keep it: its space would stay taken
/// until something else pushes it out.
#[test]
fn a_file_that_is_removed_while_others_open_it_is_not_kept() {
    const N_ROUNDS: usize = 3000;
    let root = tempfile::tempdir().unwrap();
    let open = OpenFiles::new(64);
    let path = |round: usize| root.path().join(round.to_string());
    let (begun, n_looked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 1..=N_ROUNDS {
                    while begun.load(Ordering::SeqCst) < round {
                        std::thread::yield_now();
                    }
                    match open.open(&path(round)) {
                        Ok(reader) => assert_eq!(reader.read_exact_at(0, 5).unwrap(), &b"bytes"[..]),
                        Err(error) => assert_eq!(error.kind, FileErrorKind::Missing),
                    }
                    n_looked.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let mut n_kept = 0;
        for round in 1..=N_ROUNDS {
            std::fs::write(path(round), b"bytes").unwrap();
            begun.store(round, Ordering::SeqCst);
            for _ in 0..round % 5 {
                std::hint::spin_loop();
            }
            open.remove(&path(round)).unwrap();
            while n_looked.load(Ordering::SeqCst) < 2 * round {
                std::thread::yield_now();
            }
            n_kept += usize::from(open.forget(&path(round)));
        }
        assert_eq!(n_kept, 0, "removed files were kept open");
    });
}
