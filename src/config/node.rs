//! `[node]`: who this node is, where it keeps what is its own, how much memory it may use.

use super::schema::section;
use super::units::ByteSize;
use std::path::PathBuf;

section! {
    /// Who this node is and what it may use.
    Node {
        /// Directory of the node: its identity, and everything below that has no directory of its own.
        directory: PathBuf = PathBuf::from("forebay-data");
        /// Name of the node. Drawn once and kept in the directory when it is left out. A directory
        /// that carries another name is refused: two nodes must never share a name.
        id: Option<String> = None;
        /// Base URL under which others reach this node, as in `https://node1.example:7440`. Follows
        /// from the bound address when it is left out, which suits one machine only.
        advertised_url: Option<String> = None;
        /// Memory for bytes of partitions, all kinds together. Unless the parts are set below, 40 % is
        /// for pipelined partitions (they live there), 15 % for blocking ones on their way to disk,
        /// 10 % for durable ones on their way to the object store, 10 % for bytes on their way to
        /// readers, 10 % for what connections have sent ahead, 5 % for documents; the rest is air for
        /// indices and caches. 1GiB leaves room on a small machine; 128MiB is the least that suits all
        /// kinds at their defaults.
        memory: ByteSize = ByteSize::gib(1);
    }
}
