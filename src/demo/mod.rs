//! The main job on real input: a two-stage shuffle by real processes, undisturbed and with faults.

#![expect(dead_code, reason = "driver in the next commit")]
mod workload;
