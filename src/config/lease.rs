//! `[lease]`: how long a job's data is kept without a word from its owner.

use super::schema::section;
use super::units::TimeSpan;

section! {
    /// How long a job's data is kept without a word from its owner. The bounds apply to what jobs ask for.
    Lease {
        /// Lease of a job that asks for none: longer than a master's restart, short enough that what a
        /// dead job left is gone within minutes.
        default: TimeSpan = TimeSpan::secs(300);
        /// Shortest lease. Below a second, clocks and networks decide.
        min: TimeSpan = TimeSpan::secs(1);
        /// Longest lease: nothing is held for ever by mistake.
        max: TimeSpan = TimeSpan::secs(7 * 86_400);
        /// Time between two looks for leases that ran out.
        check_interval: TimeSpan = TimeSpan::secs(1);
        /// How long the end of a job is remembered, so that late calls hear "released" or "expired".
        memory_of_ended: TimeSpan = TimeSpan::secs(86_400);
        /// Time between two looks for what dead jobs left in the object store: unfinished uploads,
        /// attempts that were never sealed, objects of ended jobs. One listing per job there.
        orphan_interval: TimeSpan = TimeSpan::secs(600);
        /// How long a job must have been found dead, or nobody have heard of it, before that is taken
        /// away. Never shorter than the default lease; leases that jobs were given stretch it.
        orphan_grace: TimeSpan = TimeSpan::secs(600);
    }
}
