//! Writers against a plain vector, with a medium that loses and adds bytes.

use crate::lock::LOCK_NAME;
use crate::{DirectoryLock, FileErrorKind, FileReader, FileWriter};
use bytes::Bytes;
use proptest::prelude::*;
use std::fs::OpenOptions;
use std::path::Path;

#[derive(Debug, Clone)]
enum Step {
    /// Appends pieces.
    Append {
        lengths: Vec<usize>,
    },
    /// Closes the file and opens it again at its position.
    Resume,
    /// The same, but `back` bytes earlier: what lay behind never counted.
    ResumeAt {
        back: usize,
    },
    /// Somebody adds bytes behind the end.
    Junk {
        length: usize,
    },
    /// The medium loses the last bytes.
    Cut {
        length: usize,
    },
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => proptest::collection::vec(0_usize..3000, 0..6).prop_map(|lengths| Step::Append { lengths }),
        2 => Just(Step::Resume),
        1 => (1_usize..4000).prop_map(|back| Step::ResumeAt { back }),
        1 => (1_usize..2000).prop_map(|length| Step::Junk { length }),
        1 => (1_usize..2000).prop_map(|length| Step::Cut { length }),
        1 => Just(Step::Sync),
    ]
}

fn set_length(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// What counts as written is in the file, at its place; a file that lost bytes is refused, and
    /// bytes that nobody counted are never taken for content.
    #[test]
    fn a_file_holds_what_a_plain_vector_holds(steps in proptest::collection::vec(step(), 1..25)) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let mut writer = FileWriter::create(&path).unwrap();
        let mut held: Vec<u8> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Append { lengths } => {
                    let fill = |at: usize| u8::try_from((number * 37 + at * 11) % 251).unwrap();
                    let pieces: Vec<Bytes> =
                        lengths.iter().enumerate().map(|(piece, length)| (0..*length).map(|at| fill(at + piece)).collect()).collect();
                    prop_assert_eq!(writer.append(&pieces).unwrap(), held.len() as u64);
                    held.extend(pieces.concat());
                }
                Step::Resume => writer = FileWriter::resume(&path, held.len() as u64).unwrap(),
                Step::ResumeAt { back } => {
                    held.truncate(held.len().saturating_sub(back));
                    writer = FileWriter::resume(&path, held.len() as u64).unwrap();
                    prop_assert_eq!(std::fs::metadata(&path).unwrap().len(), held.len() as u64, "what never counted is cut off");
                }
                Step::Junk { length } => {
                    set_length(&path, (held.len() + length) as u64);
                    writer = FileWriter::resume(&path, held.len() as u64).unwrap();
                }
                Step::Cut { length } if length <= held.len() => {
                    set_length(&path, (held.len() - length) as u64);
                    prop_assert_eq!(FileWriter::resume(&path, held.len() as u64).unwrap_err().kind, FileErrorKind::Short);
                    prop_assert_eq!(writer.finish().unwrap_err().kind, FileErrorKind::Short, "the file is shorter than promised");
                    held.truncate(held.len() - length);
                    writer = FileWriter::resume(&path, held.len() as u64).unwrap();
                }
                Step::Cut { .. } => {}
                Step::Sync => writer.sync().unwrap(),
            }
            prop_assert_eq!(writer.position(), held.len() as u64);
            let reader = FileReader::open(&path).unwrap();
            prop_assert_eq!(reader.read_exact_at(0, held.len()).unwrap(), &held[..]);
        }
        prop_assert_eq!(writer.finish().unwrap(), held.len() as u64);
    }
}

#[test]
fn a_writer_whose_file_or_directory_is_gone_says_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("d/f");
    assert_eq!(FileWriter::create(&path).unwrap_err().kind, FileErrorKind::Missing);
    assert_eq!(FileWriter::resume(&path, 0).unwrap_err().kind, FileErrorKind::Missing);
    assert_eq!(FileReader::open(&path).unwrap_err().kind, FileErrorKind::Missing);
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mut writer = FileWriter::create(&path).unwrap();
    assert_eq!(FileWriter::create(&path).unwrap_err().kind, FileErrorKind::Exists, "two writers never share a name");
    std::fs::remove_file(&path).unwrap();
    // The writer still has its file, but nobody else finds it.
    writer.append(&[Bytes::from_static(b"x")]).unwrap();
    assert_eq!(FileWriter::resume(&path, 1).unwrap_err().kind, FileErrorKind::Missing);
}

#[test]
fn positions_beyond_four_gigabytes_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    for start in [(1_u64 << 31) - 3, (1 << 32) - 3, (1 << 32) + 5, 5 << 30] {
        drop(std::fs::remove_file(&path));
        drop(FileWriter::create(&path).unwrap());
        set_length(&path, start);
        let mut writer = FileWriter::resume(&path, start).unwrap();
        assert_eq!(writer.append(&[Bytes::from_static(b"abc"), Bytes::from_static(b"defg")]).unwrap(), start);
        assert_eq!(writer.position(), start + 7);
        let reader = FileReader::open(&path).unwrap();
        assert_eq!(reader.length().unwrap(), start + 7);
        assert_eq!(reader.read_exact_at(start - 2, 9).unwrap(), &b"\0\0abcdefg"[..]);
        assert_eq!(reader.read_exact_at(start, 8).unwrap_err().kind, FileErrorKind::Short);
        let wrapped = start % (1 << 32);
        assert!(wrapped == start || reader.read_exact_at(wrapped, 3).unwrap() == b"\0\0\0"[..], "no position was cut to 32 bits");
    }
}

#[test]
fn the_lock_of_a_process_that_was_killed_is_free() {
    let root = tempfile::tempdir().unwrap();
    let mut other = std::process::Command::new("flock");
    let other = other.args(["--exclusive", "--nonblock", "--no-fork"]).arg(root.path().join(LOCK_NAME)).args(["sleep", "600"]).spawn();
    let Ok(mut other) = other else {
        println!("skipped: there is no command here that takes a lock");
        return;
    };
    // Taking it ourselves is how to see whether the other has it yet.
    let mut tries = 0;
    while DirectoryLock::take(root.path()).map_or_else(|error| error.kind, |_| FileErrorKind::Io) != FileErrorKind::Locked {
        assert!(other.try_wait().unwrap().is_none() && tries < 10_000_000, "the other process does not take the lock");
        tries += 1;
        std::thread::yield_now();
    }
    assert_eq!(DirectoryLock::take(root.path()).unwrap_err().path, root.path(), "the message names the directory");
    other.kill().unwrap();
    other.wait().unwrap();
    DirectoryLock::take(root.path()).expect("a lock ends with its process");
}
