//! `[coordinator]`: who keeps the overview of jobs, workers and nodes.

use super::schema::{choice, section};
use super::units::TimeSpan;

choice! {
    /// What this process is.
    Role = "\"both\"" {
        /// Keeps partitions and coordinates itself.
        Both = "both",
        /// Keeps partitions; another process coordinates.
        Node = "node",
        /// Coordinates and keeps no partitions.
        Coordinator = "coordinator",
    }
}

section! {
    /// Who keeps the overview of jobs, workers and nodes, and plans what must restart.
    Coordinator {
        /// What this process is: "both" (the default: one process is a whole service), "node", or
        /// "coordinator".
        role: Role = Role::Both;
        /// Base URL of the coordinator, for role "node", as in "http://coordinator:7440".
        url: Option<String> = None;
        /// Time between two heartbeats of a node or worker. 10s, as Apache Flink has it.
        heartbeat_interval: TimeSpan = TimeSpan::secs(10);
        /// Silence after which a node or worker counts as gone. 50s, as Apache Flink has it.
        heartbeat_timeout: TimeSpan = TimeSpan::secs(50);
    }
}
