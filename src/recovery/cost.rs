//! What a plan costs, in tasks and bytes.

use super::reads::Outcome;
use super::snapshot::{GroupProgress, Progress};
use super::view::{Row, count_common};

/// What a set of restarts costs, as far as it is known. Bytes not yet written are not counted, and
/// where common progress holds bounds, the bytes are bounds too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Tasks that run again.
    pub n_tasks: u32,
    /// Bytes that exist and are read once more.
    pub reread_bytes: u64,
    /// Bytes that existed and are written once more.
    pub recomputed_bytes: u64,
}

pub(super) fn cost_of(outcome: &Outcome<'_>) -> Cost {
    let mut cost = Cost { n_tasks: outcome.closure.restart.len(), ..Cost::default() };
    for row in outcome.view.rows().filter(|row| !outcome.is_rewritten(row.partition)) {
        if let Some(progress) = row.progress {
            let bytes = sum(progress, outcome.restarting(row), |one| one.end.since(one.need.max(one.floor)));
            cost.reread_bytes = cost.reread_bytes.saturating_add(bytes);
        }
    }
    for task in outcome.closure.restart.iter() {
        for partition in outcome.view.snapshot.graph().outputs_of(task).filter(|partition| outcome.is_rewritten(*partition)) {
            // Each group reads the same bytes: the group that reads most stands for all.
            let bytes = outcome.view.rows_of(partition).map(written_bytes).max().unwrap_or(0);
            cost.recomputed_bytes = cost.recomputed_bytes.saturating_add(bytes);
        }
    }
    cost
}

fn written_bytes(row: Row<'_>) -> u64 {
    let Some(progress) = row.progress else { return 0 };
    let written = |one: &Progress| one.end.since(one.rewind);
    let n_common = (row.readers().len() - progress.others.len().min(row.readers().len())) as u64;
    let own = progress.others.iter().map(|(_, one)| written(one)).fold(0, u64::saturating_add);
    written(&progress.common).saturating_mul(n_common).saturating_add(own)
}

fn sum(progress: &GroupProgress, members: &[u32], bytes: impl Fn(&Progress) -> u64) -> u64 {
    let common = bytes(&progress.common).saturating_mul(count_common(members, progress) as u64);
    let own = progress.others.iter().filter(|(consumer, _)| members.binary_search(consumer).is_ok());
    own.map(|(_, one)| bytes(one)).fold(common, u64::saturating_add)
}
