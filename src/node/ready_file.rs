//! Tells whoever started the node where it is.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// What the ready file holds, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyDocument {
    /// Base URL of the node.
    pub url: String,
    /// The address that was bound.
    pub address: String,
    /// The node.
    pub node: String,
    /// This life of it.
    pub life: String,
    /// The process.
    pub pid: u32,
}

impl ReadyDocument {
    /// Writes it to a draft beside `path` and renames that, so that nobody reads half of it.
    /// Errors: those of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".draft");
        std::fs::write(&draft, serde_json::to_string(self)? + "\n")?;
        std::fs::rename(&draft, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_no_draft_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ready.json");
        let document = ReadyDocument { url: "http://h:1".into(), address: "h:1".into(), node: "n".into(), life: "0".into(), pid: 7 };
        document.write(&path).unwrap();
        assert_eq!(serde_json::from_str::<ReadyDocument>(&std::fs::read_to_string(&path).unwrap()).unwrap(), document);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
