use super::*;
use crate::buffer::{Buffer, Held};
use crate::sample::small_spill;
use store_api::{Crc32c, Offset, SystemClock};

async fn area(root: &Path) -> Spill {
    Spill::open(small_spill(root), SystemClock::shared(), TaskGroup::new(), Arc::default()).await.unwrap()
}

fn held(pieces: &[&'static [u8]]) -> Vec<Held> {
    let mut buffer: Buffer<Place> = Buffer::new(Offset::ZERO, None);
    for piece in pieces {
        buffer.push(Bytes::from_static(piece), Crc32c::of(piece), 0);
    }
    buffer.spillable(u64::MAX)
}

fn files(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("spill")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == SUFFIX)).collect()
}

#[tokio::test]
async fn what_was_spilled_is_read_back_and_its_file_goes_with_the_last_extent() {
    let root = tempfile::tempdir().unwrap();
    let (spill, current) = (area(root.path()).await, Mutex::new(None));
    let mut extents = spill.write(&current, &held(&[b"abc", b"", b"defg"])).await.unwrap();
    extents.extend(spill.write(&current, &held(&[b"hi"])).await.unwrap());
    let mut all = Vec::new();
    for extent in &extents {
        all.extend_from_slice(&spill.read(extent).await.unwrap());
    }
    assert_eq!(all, b"abcdefghi");
    assert_eq!(files(root.path()).len(), 1, "an attempt writes to one file");
    current.lock().take();
    extents.truncate(1);
    spill.remove_condemned().await;
    assert_eq!(spill.read(&extents[0]).await.unwrap(), &b"abc"[..], "a file stays as long as anything is in it");
    extents.clear();
    spill.remove_condemned().await;
    assert!(files(root.path()).is_empty());
}

#[tokio::test]
async fn a_full_file_is_followed_by_another() {
    let root = tempfile::tempdir().unwrap();
    let (spill, current) = (area(root.path()).await, Mutex::new(None));
    let long: &'static [u8] = Box::leak(vec![7; 5000].into_boxed_slice());
    let mut extents = Vec::new();
    for _ in 0..4 {
        extents.extend(spill.write(&current, &held(&[long])).await.unwrap());
    }
    assert_eq!(files(root.path()).len(), 2);
    for extent in &extents {
        assert_eq!(spill.read(extent).await.unwrap(), long);
    }
}

#[tokio::test]
async fn damage_on_disk_is_never_handed_out() {
    let root = tempfile::tempdir().unwrap();
    let (spill, current) = (area(root.path()).await, Mutex::new(None));
    let extents = spill.write(&current, &held(&[b"first", b"second"])).await.unwrap();
    let path = files(root.path()).remove(0);
    let mut content = std::fs::read(&path).unwrap();
    content[7] ^= 0x20;
    std::fs::write(&path, &content).unwrap();
    assert_eq!(spill.read(&extents[0]).await.unwrap(), &b"first"[..]);
    assert_eq!(spill.read(&extents[1]).await.unwrap_err().loss(), Some(LossCause::Corruption));
    std::fs::write(&path, &content[..6]).unwrap();
    assert!(spill.read(&extents[1]).await.unwrap_err().loss().is_some(), "a short file is not filled up with zeros");
    std::fs::remove_file(&path).unwrap();
    spill.open.forget(&path);
    assert_eq!(spill.read(&extents[0]).await.unwrap_err().loss(), Some(LossCause::Disk));
}

#[tokio::test]
async fn files_of_a_former_life_are_removed_and_others_left_alone() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("spill")).unwrap();
    for name in ["0.spill", "77.spill", "notes.txt"] {
        std::fs::write(root.path().join("spill").join(name), b"old").unwrap();
    }
    let spill = area(root.path()).await;
    assert_eq!((spill.take_stale(), spill.take_stale()), (2, 0));
    assert!(files(root.path()).is_empty());
    assert!(root.path().join("spill/notes.txt").exists());
    let second = Spill::open(small_spill(root.path()), SystemClock::shared(), TaskGroup::new(), Arc::default()).await;
    assert_eq!(second.unwrap_err().kind, FileErrorKind::Locked, "two stores never share a directory");
}

#[tokio::test]
async fn after_a_failed_write_the_next_one_takes_another_file() {
    let root = tempfile::tempdir().unwrap();
    let (spill, current) = (area(root.path()).await, Mutex::new(None));
    spill.write(&current, &held(&[b"abc"])).await.unwrap();
    let first = current.lock().clone().unwrap();
    // As after a failed sync: the file takes nothing more.
    *first.writer.lock() = None;
    let extents = spill.write(&current, &held(&[b"def"])).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &current.lock().clone().unwrap()));
    assert_eq!(spill.read(&extents[0]).await.unwrap(), &b"def"[..]);
}
