//! Sets of directories: all combinations of states, random reports and repairs, work that is left.

use crate::{DirectoryConfig, DirectorySet, DirectoryState, FileError, FileErrorKind, FileOperation};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::ManualClock;
use store_api::{SystemClock, TaskGroup};

fn error(kind: FileErrorKind, operation: FileOperation) -> FileError {
    FileError::new(kind, operation, Path::new("x"))
}

fn open(root: &Path, count: usize) -> (Arc<DirectorySet>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(0));
    let paths: Vec<PathBuf> = (0..count).map(|number| root.join(number.to_string())).collect();
    let config = DirectoryConfig { reserve_bytes: 0, reserve_per_mille: 0, ..DirectoryConfig::new(paths) };
    (Arc::new(DirectorySet::open(config, clock.clone()).unwrap()), clock)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Usable,
    Full,
    Failed,
}

const STANDS: [Stands; 3] = [Stands::Usable, Stands::Full, Stands::Failed];

#[test]
fn exactly_the_affected_directories_are_out_in_every_combination() {
    for combination in 0..27_usize {
        let root = tempfile::tempdir().unwrap();
        let (set, _clock) = open(root.path(), 3);
        let stands: Vec<Stands> = (0..3).map(|at| STANDS[combination / 3_usize.pow(at) % 3]).collect();
        for (at, stand) in stands.iter().enumerate() {
            match stand {
                Stands::Usable => {}
                Stands::Full => set.report(at, &error(FileErrorKind::Full, FileOperation::Write)),
                Stands::Failed => set.report(at, &error(FileErrorKind::Io, FileOperation::Sync)),
            }
        }
        for (status, stand) in set.statuses().iter().zip(&stands) {
            let found = match &status.state {
                DirectoryState::Usable => Stands::Usable,
                DirectoryState::Full => Stands::Full,
                DirectoryState::Failed { reason } => {
                    assert!(reason.contains("Sync"), "the reason is what failed: {reason}");
                    Stands::Failed
                }
            };
            assert_eq!(found, *stand, "{stands:?}");
        }
        let usable: Vec<usize> = (0..3).filter(|at| stands[*at] == Stands::Usable).collect();
        for preferred in [None, Some(0), Some(1), Some(2)] {
            match set.place(preferred, 1000) {
                Ok(chosen) => {
                    assert!(usable.contains(&chosen), "{stands:?}: {chosen}");
                    assert!(preferred.is_none_or(|wanted| !usable.contains(&wanted) || wanted == chosen), "{stands:?}: it stays");
                }
                Err(error) => {
                    assert!(usable.is_empty(), "{stands:?}: {error}");
                    // As long as one of them is only full, freeing room helps, and that is what is said.
                    let wanted = if stands.contains(&Stands::Full) { FileErrorKind::Full } else { FileErrorKind::Io };
                    assert_eq!(error.kind, wanted, "{stands:?}");
                }
            }
        }
        assert_eq!(set.free_bytes() > 0, !usable.is_empty(), "only usable ones have room: {stands:?}");
    }
}

#[test]
fn errors_about_one_file_do_not_condemn_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let (set, _clock) = open(root.path(), 1);
    for kind in [FileErrorKind::Short, FileErrorKind::Exists, FileErrorKind::Poisoned, FileErrorKind::Busy] {
        set.report(0, &error(kind, FileOperation::Write));
        assert_eq!(set.statuses()[0].state, DirectoryState::Usable, "{kind:?}");
    }
    for kind in [FileErrorKind::Missing, FileErrorKind::Io, FileErrorKind::Short] {
        set.report(0, &error(kind, FileOperation::Read));
        assert_eq!(set.statuses()[0].state, DirectoryState::Usable, "{kind:?} of a read");
    }
    // Out of its range: nothing happens.
    set.report(7, &error(FileErrorKind::Io, FileOperation::Write));
    assert_eq!((set.choose(1).unwrap(), set.path(1), set.count()), (0, None, 1));
    assert_eq!(set.sync_names(7).unwrap_err().kind, FileErrorKind::Missing);
}

#[derive(Debug, Clone)]
enum Step {
    Report { at: usize, is_full: bool },
    Break { at: usize },
    Repair { at: usize },
    Pass { millis: u64 },
    Choose { preferred: Option<usize> },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0_usize..3, any::<bool>()).prop_map(|(at, is_full)| Step::Report { at, is_full }),
        1 => (0_usize..3).prop_map(|at| Step::Break { at }),
        2 => (0_usize..3).prop_map(|at| Step::Repair { at }),
        3 => prop_oneof![Just(99_u64), Just(1000), 0_u64..2500].prop_map(|millis| Step::Pass { millis }),
        5 => proptest::option::of(0_usize..3).prop_map(|preferred| Step::Choose { preferred }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whatever is reported, broken and repaired in between: a directory with a fresh report is left
    /// alone for the probe interval, a broken one is not chosen once its old figure is too old, and
    /// a sound one is taken again after the interval, without anybody's help.
    #[test]
    fn a_set_follows_its_directories(steps in proptest::collection::vec(step(), 1..40)) {
        let root = tempfile::tempdir().unwrap();
        let (set, clock) = open(root.path(), 3);
        let path = |at: usize| root.path().join(at.to_string());
        let mut now = 0_u64;
        let mut reported_at: [Option<u64>; 3] = [None; 3];
        let mut broken_since: [Option<u64>; 3] = [None; 3];
        let mut repaired_at: [Option<u64>; 3] = [None; 3];
        for step in steps {
            match step {
                Step::Report { at, is_full } => {
                    let kind = if is_full { FileErrorKind::Full } else { FileErrorKind::Io };
                    set.report(at, &error(kind, FileOperation::Write));
                    reported_at[at] = Some(now);
                }
                Step::Break { at } if broken_since[at].is_none() => {
                    std::fs::remove_dir(path(at)).unwrap();
                    broken_since[at] = Some(now);
                }
                Step::Repair { at } if broken_since[at].is_some() => {
                    std::fs::create_dir(path(at)).unwrap();
                    broken_since[at] = None;
                    repaired_at[at] = Some(now);
                }
                Step::Break { .. } | Step::Repair { .. } => {}
                Step::Pass { millis } => {
                    clock.advance(Duration::from_millis(millis));
                    now += millis;
                }
                Step::Choose { preferred } => {
                    let is_left_alone = |at: usize| reported_at[at].is_some_and(|then| now - then < 1000);
                    let is_surely_broken = |at: usize| broken_since[at].is_some_and(|then| now - then >= 100);
                    // It may have been looked at while it was broken.
                    let is_long_ago = |then: Option<u64>| then.is_none_or(|then| now - then >= 1000);
                    let is_sound = |at: usize| broken_since[at].is_none() && is_long_ago(reported_at[at]) && is_long_ago(repaired_at[at]);
                    match set.place(preferred, 1) {
                        Ok(chosen) => {
                            prop_assert!(!is_left_alone(chosen), "{} was just reported", chosen);
                            prop_assert!(!is_surely_broken(chosen), "{} is not there", chosen);
                            prop_assert!(preferred.is_none_or(|wanted| wanted == chosen || !is_sound(wanted)), "{:?} is sound", preferred);
                        }
                        Err(error) => prop_assert!(!(0..3).any(is_sound), "one is sound, and still {}", error),
                    }
                }
            }
        }
    }
}

#[test]
fn names_that_cannot_be_synced_are_an_error_for_all_who_wait_and_synced_again_later() {
    let root = tempfile::tempdir().unwrap();
    let (set, _clock) = open(root.path(), 1);
    std::fs::remove_dir(root.path().join("0")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(set.sync_names(0).unwrap_err().kind, FileErrorKind::Missing, "no sync was made"));
        }
    });
    std::fs::create_dir(root.path().join("0")).unwrap();
    set.sync_names(0).unwrap();
}

#[tokio::test]
async fn work_whose_caller_left_goes_on_to_its_end_and_holds_its_lane_until_then() {
    let root = tempfile::tempdir().unwrap();
    let mut config = DirectoryConfig::new(vec![root.path().to_path_buf()]);
    (config.n_lanes, config.lane_patience) = (1, Duration::ZERO);
    let set = Arc::new(DirectorySet::open(config, SystemClock::shared()).unwrap());
    let tasks = TaskGroup::new();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let path = root.path().join("done");
    {
        let target = path.clone();
        let left = set.run(&tasks, 0, move || {
            let _ = wait.recv();
            std::fs::write(&target, b"done").map_err(|error| FileError::io(FileOperation::Write, &target, error))
        });
        tokio::pin!(left);
        // Polled until the work has begun: then nobody else gets the lane.
        while set.run(&tasks, 0, || Ok(())).await.is_ok() {
            assert!(futures_poll(left.as_mut()).await.is_none());
        }
    }
    assert_eq!(set.run(&tasks, 0, || Ok(())).await.unwrap_err().kind, FileErrorKind::Busy, "the lane is held by the work");
    assert!(!path.exists());
    go.send(()).unwrap();
    while let Err(error) = set.run(&tasks, 0, || Ok(())).await {
        assert_eq!(error.kind, FileErrorKind::Busy);
        tokio::task::yield_now().await;
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"done");
}

/// Polls once.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn failures_of_work_are_reported_and_refusals_of_lanes_are_not() {
    let root = tempfile::tempdir().unwrap();
    let (set, clock) = open(root.path(), 2);
    let tasks = TaskGroup::new();
    let failed = set.run(&tasks, 0, || -> Result<(), _> { Err(error(FileErrorKind::Io, FileOperation::Write)) }).await;
    assert_eq!(failed.unwrap_err().kind, FileErrorKind::Io);
    assert!(matches!(set.statuses()[0].state, DirectoryState::Failed { .. }));
    let failed = set.run(&tasks, 1, || -> Result<(), _> { Err(error(FileErrorKind::Full, FileOperation::Write)) }).await;
    assert_eq!(failed.unwrap_err().kind, FileErrorKind::Full);
    assert_eq!(set.statuses()[1].state, DirectoryState::Full);
    assert_eq!(set.run(&tasks, 9, || Ok(())).await.unwrap_err().kind, FileErrorKind::Missing);
    clock.advance(Duration::from_secs(1));
    assert!(set.choose(1).is_ok());
}
