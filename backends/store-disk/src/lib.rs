//! Blocking partitions on local disk.
