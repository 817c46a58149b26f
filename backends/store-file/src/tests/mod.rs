//! Claims about files and directories under faults of the medium and many threads.

mod directories;
mod readers;
mod small_disk;
mod writers;
