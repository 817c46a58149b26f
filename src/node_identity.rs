//! Who this node is: its directory is locked for this process, its id is drawn once and kept there,
//! its life is drawn at every start.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use store_api::{NodeId, NodeLife};

/// File that holds the node's id, within its directory.
const ID_NAME: &str = "node-id";
/// File that is locked, within the node's directory.
const LOCK_NAME: &str = "node.lock";

/// Why a node cannot have its directory.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Another process has it.
    #[error("the directory {} is in use by another forebay process", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It belongs to a node of another name.
    #[error("the directory {} belongs to node {found}, not to {wanted}", path.display())]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Who was configured.
        wanted: NodeId,
    },
    /// The stored id cannot be read as one.
    #[error("{}: does not hold a node id", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was being used.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// A node, and its directory for as long as this is kept.
#[derive(Debug)]
pub struct NodeIdentity {
    /// The node.
    pub node: NodeId,
    /// This life of it.
    pub life: NodeLife,
    /// Holds the lock; the system lets go of it with the process, however that ends.
    _lock: File,
}

/// Takes the directory, which is made if it is not there, reads or draws the node's id and draws
/// this life. Blocking. Durable: the id is synced before it is answered. Errors: all of
/// [`IdentityError`]; nothing is changed when the directory is in use.
pub fn take(directory: &Path, wanted: Option<&NodeId>) -> Result<NodeIdentity, IdentityError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| IdentityError::Io { path, source }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let lock_path = directory.join(LOCK_NAME);
    let lock = File::options().read(true).write(true).create(true).truncate(false).open(&lock_path).map_err(failed(&lock_path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(IdentityError::InUse { path: directory.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(failed(&lock_path)(error)),
    }
    let node = read_or_draw(directory, wanted)?;
    let life = NodeLife::new(getrandom::u64().map_err(|_| IdentityError::Random)?);
    Ok(NodeIdentity { node, life, _lock: lock })
}

fn read_or_draw(directory: &Path, wanted: Option<&NodeId>) -> Result<NodeId, IdentityError> {
    let path = directory.join(ID_NAME);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let found = NodeId::new(text.trim()).map_err(|_| IdentityError::Damaged { path })?;
            match wanted {
                Some(wanted) if *wanted != found => {
                    Err(IdentityError::OtherNode { path: directory.to_owned(), found, wanted: wanted.clone() })
                }
                _ => Ok(found),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let node = wanted.cloned().map_or_else(draw, Ok)?;
            write(directory, &path, &node).map_err(|source| IdentityError::Io { path, source })?;
            Ok(node)
        }
        Err(source) => Err(IdentityError::Io { path, source }),
    }
}

fn draw() -> Result<NodeId, IdentityError> {
    let number = getrandom::u64().map_err(|_| IdentityError::Random)?;
    NodeId::new(&format!("node-{number:016x}")).map_err(|_| IdentityError::Random)
}

/// Write, sync, rename, sync the directory: after a crash there is the whole id or none.
fn write(directory: &Path, path: &Path, node: &NodeId) -> io::Result<()> {
    let draft = directory.join(format!("{ID_NAME}.draft"));
    let mut file = File::create(&draft)?;
    writeln!(file, "{node}")?;
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeId {
        NodeId::new(text).unwrap()
    }

    #[test]
    fn the_node_stays_the_same_and_the_life_does_not() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("not/there/yet");
        let first = take(&directory, None).unwrap();
        let (node, life) = (first.node.clone(), first.life);
        drop(first);
        let second = take(&directory, None).unwrap();
        assert_eq!(second.node, node);
        assert_ne!(second.life, life);
    }

    #[test]
    fn a_second_holder_is_refused_by_the_directorys_name_also_over_another_path() {
        let root = tempfile::tempdir().unwrap();
        let (real, other) = (root.path().join("real"), root.path().join("other"));
        let held = take(&real, None).unwrap();
        std::os::unix::fs::symlink(&real, &other).unwrap();
        for path in [&real, &other] {
            let refused = take(path, None).unwrap_err();
            assert!(matches!(refused, IdentityError::InUse { .. }));
            assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
        }
        drop(held);
        assert!(take(&other, None).is_ok());
    }

    #[test]
    fn a_directory_of_another_node_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(take(root.path(), Some(&name("n1"))).unwrap().node, name("n1"));
        assert!(matches!(take(root.path(), Some(&name("n2"))), Err(IdentityError::OtherNode { .. })));
        assert_eq!(take(root.path(), None).unwrap().node, name("n1"));
    }

    #[test]
    fn a_damaged_id_is_not_replaced_by_a_new_one() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(ID_NAME), "no id at all\n").unwrap();
        assert!(matches!(take(root.path(), None), Err(IdentityError::Damaged { .. })));
    }
}
