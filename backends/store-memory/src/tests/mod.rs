//! Claims about the store as a whole.

mod disks;
mod reader;
mod retentions;
