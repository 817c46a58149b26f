//! Pipelined partitions in memory, with spill to disk.
