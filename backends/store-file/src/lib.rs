//! File layer shared by spill files and data files.
