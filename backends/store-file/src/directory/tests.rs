use super::*;
use store_api::SystemClock;
use store_api::clock::ManualClock;

fn set(paths: Vec<PathBuf>, clock: &Arc<ManualClock>) -> Result<DirectorySet, FileError> {
    let config = DirectoryConfig { reserve_bytes: 0, reserve_per_mille: 0, ..DirectoryConfig::new(paths) };
    DirectorySet::open(config, clock.clone())
}

#[test]
fn a_full_directory_is_passed_over_and_taken_again_once_it_has_room() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let set = set(vec![root.path().join("a"), root.path().join("b")], &clock).unwrap();
    set.report(0, &FileError::new(FileErrorKind::Full, FileOperation::Write, root.path()));
    assert_eq!(set.statuses()[0].state, DirectoryState::Full);
    for _ in 0..4 {
        assert_eq!(set.choose(1).unwrap(), 1);
    }
    set.report(1, &FileError::new(FileErrorKind::Full, FileOperation::Write, root.path()));
    assert_eq!(set.choose(1).unwrap_err().kind, FileErrorKind::Full);
    clock.advance(Duration::from_secs(2));
    assert!(set.choose(1).is_ok(), "room is looked for again after the interval");
    assert_eq!(set.statuses()[0].state, DirectoryState::Usable);
}

#[test]
fn a_failed_directory_says_why_and_comes_back_when_it_is_healed() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let broken = root.path().join("a");
    let set = set(vec![broken.clone(), root.path().join("b")], &clock).unwrap();
    std::fs::remove_dir_all(&broken).unwrap();
    clock.advance(Duration::from_secs(2));
    for _ in 0..4 {
        assert_eq!(set.choose(1).unwrap(), 1);
    }
    let DirectoryState::Failed { reason } = &set.statuses()[0].state else { panic!("it is gone") };
    assert!(reason.contains(&broken.display().to_string()), "{reason}");
    std::fs::create_dir(&broken).unwrap();
    clock.advance(Duration::from_secs(2));
    let chosen: Vec<usize> = (0..4).map(|_| set.choose(1).unwrap()).collect();
    assert!(chosen.contains(&0), "{chosen:?}");
}

#[test]
fn a_set_opens_with_one_usable_directory_and_not_without() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let blocked = root.path().join("file");
    std::fs::write(&blocked, b"").unwrap();
    let one = set(vec![blocked.join("x"), root.path().join("b")], &clock).unwrap();
    assert!(matches!(one.statuses()[0].state, DirectoryState::Failed { .. }));
    assert_eq!(one.choose(1).unwrap(), 1);
    assert!(set(vec![blocked.join("x")], &clock).is_err());
    assert!(set(Vec::new(), &clock).is_err());
}

#[test]
fn room_of_one_file_system_is_counted_once() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let one = set(vec![root.path().join("a")], &clock).unwrap();
    let two = set(vec![root.path().join("b"), root.path().join("c")], &clock).unwrap();
    let (one, two) = (one.free_bytes(), two.free_bytes());
    assert!(two < one + one / 2, "{two} against {one}");
}

#[test]
fn directories_of_one_file_system_take_turns() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let set = set((0..3).map(|n| root.path().join(n.to_string())).collect(), &clock).unwrap();
    let mut n_chosen = [0; 3];
    for _ in 0..30 {
        clock.advance(Duration::from_millis(70));
        n_chosen[set.choose(1).unwrap()] += 1;
    }
    assert_eq!(n_chosen, [10; 3]);
}

#[test]
fn the_reserve_is_not_given_out() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let config = DirectoryConfig { reserve_bytes: u64::MAX, ..DirectoryConfig::new(vec![root.path().to_path_buf()]) };
    let set = DirectorySet::open(config, clock).unwrap();
    assert_eq!(set.choose(1).unwrap_err().kind, FileErrorKind::Full);
    assert_eq!(set.statuses()[0].state, DirectoryState::Full);
}

#[test]
fn room_that_was_given_out_is_not_given_out_again() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let set = set(vec![root.path().join("a"), root.path().join("b")], &clock).unwrap();
    let most = set.statuses().iter().map(|status| status.free_bytes).max().unwrap();
    let chosen = set.choose(most).unwrap();
    assert!(set.statuses().iter().all(|status| status.free_bytes < most / 2), "both lie on one file system");
    assert_eq!(set.choose(most).unwrap_err().kind, FileErrorKind::Full);
    assert_eq!(set.place(Some(chosen), most).unwrap_err().kind, FileErrorKind::Full);
    clock.advance(Duration::from_secs(2));
    assert_eq!(set.place(Some(1), most / 2).unwrap(), 1, "asked anew, it stays where it was");
    assert_eq!(set.place(Some(0), 1).unwrap(), 0);
}

#[test]
fn a_file_system_that_does_not_answer_holds_one_caller() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let set = set(vec![root.path().join("a"), root.path().join("b")], &clock).unwrap();
    // Somebody has asked and waits.
    set.directories[0].health.lock().probing_since = Some(Duration::ZERO);
    clock.advance(Duration::from_secs(31));
    for _ in 0..4 {
        assert_eq!(set.choose(1).unwrap(), 1);
    }
    assert!(matches!(set.statuses()[0].state, DirectoryState::Failed { .. }));
}

#[test]
fn names_are_synced_together_and_each_call_by_a_later_sync() {
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let set = set(vec![root.path().to_path_buf()], &clock).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| set.sync_names(0).unwrap());
        }
    });
    assert_eq!(*set.directories[0].n_synced.lock(), 16);
    assert!(set.sync_names(1).is_err());
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn a_directory_that_hangs_holds_no_more_threads_than_it_has_lanes() {
    let root = tempfile::tempdir().unwrap();
    let mut config = DirectoryConfig::new(vec![root.path().to_path_buf()]);
    config.n_lanes = 2;
    config.lane_patience = Duration::from_millis(50);
    let set = Arc::new(DirectorySet::open(config, SystemClock::shared()).unwrap());
    let tasks = TaskGroup::new();
    let (unblock, hung) = std::sync::mpsc::channel::<()>();
    let hung = Arc::new(Mutex::new(hung));
    let mut blocked = Vec::new();
    for _ in 0..2 {
        let (set, tasks, hung) = (set.clone(), tasks.clone(), hung.clone());
        blocked.push(tokio::spawn(async move {
            set.run(&tasks, 0, move || {
                let _ = hung.lock().recv();
                Ok(())
            })
            .await
        }));
    }
    while set.directories[0].lanes.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(set.run(&tasks, 0, || Ok(())).await.unwrap_err().kind, FileErrorKind::Busy);
    drop(unblock);
    for one in blocked {
        one.await.unwrap().unwrap();
    }
    assert!(set.run(&tasks, 0, || Ok(())).await.is_ok());
}

#[tokio::test]
async fn work_that_panics_is_an_error_and_gives_its_lane_back() {
    let root = tempfile::tempdir().unwrap();
    let mut config = DirectoryConfig::new(vec![root.path().to_path_buf()]);
    config.n_lanes = 1;
    let set = Arc::new(DirectorySet::open(config, SystemClock::shared()).unwrap());
    let tasks = TaskGroup::new();
    let failed = set.run(&tasks, 0, || -> Result<(), FileError> { panic!("as asked") }).await;
    assert_eq!(failed.unwrap_err().kind, FileErrorKind::Io);
    assert_eq!(set.run(&tasks, 0, || Ok(7)).await.unwrap(), 7);
}
