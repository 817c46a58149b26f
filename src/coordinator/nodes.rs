//! The nodes: who is there, and what each holds. In memory: nodes say it again.

use super::calls::{Held, HeldKey, HeldState, Located, MemberStanding, NodePlace, NodeReport, NodeView};
use crate::recovery::snapshot::{NodeRecord, NodeStanding};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store_api::{DatasetId, NodeId, NodeLife, PartitionId};

/// Former lives of a node that are remembered.
const MAX_FORMER: usize = 16;
/// Orders to a node that wait for its next report. Beyond it the oldest are dropped: what they
/// would have given back is given back when the node announces it again.
const MAX_ORDERS: usize = 100_000;

struct Node {
    place: NodePlace,
    life_since: Duration,
    heard_at: Duration,
    standing: MemberStanding,
    former: VecDeque<NodeLife>,
    sequence: u64,
    held: BTreeMap<HeldKey, Held>,
    orders: VecDeque<(HeldKey, Held)>,
}

/// Every node that was heard of.
#[derive(Default)]
pub(super) struct NodeTable {
    nodes: BTreeMap<NodeId, Node>,
}

/// How nodes stand at a moment, for the planner.
#[derive(Debug, Clone, Default)]
pub(super) struct NodesNow {
    records: Arc<[NodeRecord]>,
}

impl NodesNow {
    /// The nodes, by id.
    pub(super) fn records(&self) -> &[NodeRecord] {
        &self.records
    }

    /// The place of a node in the records.
    pub(super) fn place_of(&self, node: &NodeId) -> Option<u32> {
        self.records.binary_search_by(|record| record.id.cmp(node)).ok().and_then(|place| u32::try_from(place).ok())
    }

    /// Whether a life of a node answers.
    pub(super) fn is_up(&self, node: &NodeId, life: NodeLife) -> bool {
        let record = self.place_of(node).and_then(|place| self.records.get(place as usize));
        record.is_some_and(|record| record.life == life && record.standing == NodeStanding::Up)
    }
}

/// What a report of a node comes to.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The next one has to carry everything.
    pub(super) begin_anew: bool,
    /// What is new, and what is not there any more.
    pub(super) changes: Vec<(HeldKey, Held)>,
    /// Whether the node was gone, suspect or of another life before: somebody has to look.
    pub(super) has_come: bool,
}

impl NodeTable {
    /// A node is alive. Errors: a life that was replaced, with the one that is current.
    pub(super) fn hear(&mut self, report: NodeReport, now: Duration) -> Result<Heard, NodeLife> {
        let known = self.nodes.entry(report.place.node.clone()).or_insert_with(|| Node {
            place: report.place.clone(),
            life_since: now,
            heard_at: now,
            standing: MemberStanding::Lost,
            former: VecDeque::new(),
            sequence: u64::MAX,
            held: BTreeMap::new(),
            orders: VecDeque::new(),
        });
        if known.former.contains(&report.place.life) {
            return Err(known.place.life);
        }
        let mut heard = Heard::default();
        if known.place.life != report.place.life {
            known.former.push_back(known.place.life);
            known.former.truncate(MAX_FORMER);
            (known.life_since, known.sequence, heard.has_come) = (now, u64::MAX, true);
        }
        heard.has_come |= known.standing != MemberStanding::Up;
        (known.place, known.heard_at, known.standing) = (report.place, now, MemberStanding::Up);
        match report.sequence {
            0 => {
                let held: BTreeMap<HeldKey, Held> = report.held.into_iter().filter(|(_, held)| held.state != HeldState::Absent).collect();
                let gone = known.held.iter().filter(|(key, _)| !held.contains_key(key)).map(|(key, held)| (key.clone(), absent(held)));
                heard.changes = gone.chain(held.iter().map(|(key, held)| (key.clone(), *held))).collect();
                (known.held, known.sequence) = (held, 0);
            }
            sequence if known.sequence.checked_add(1) == Some(sequence) => {
                for (key, held) in &report.held {
                    match held.state {
                        HeldState::Absent => drop(known.held.remove(key)),
                        _ => drop(known.held.insert(key.clone(), *held)),
                    }
                }
                (heard.changes, known.sequence) = (report.held, sequence);
            }
            // The answer was lost: this was taken in.
            sequence if known.sequence == sequence => {}
            _ => heard.begin_anew = true,
        }
        Ok(heard)
    }

    /// Orders for a node.
    pub(super) fn order(&mut self, node: &NodeId, key: HeldKey, held: Held) {
        if let Some(node) = self.nodes.get_mut(node) {
            if node.orders.len() >= MAX_ORDERS {
                node.orders.pop_front();
            }
            node.orders.push_back((key, held));
        }
    }

    /// The orders for a node that has just been heard; they are given once.
    pub(super) fn take_orders(&mut self, node: &NodeId) -> Vec<(HeldKey, Held)> {
        self.nodes.get_mut(node).map(|node| node.orders.drain(..).collect()).unwrap_or_default()
    }

    /// Nodes that fell silent since the last look: suspect after `suspect_after`, lost after `timeout`.
    pub(super) fn expire(&mut self, now: Duration, suspect_after: Duration, timeout: Duration) -> Vec<NodeId> {
        let mut changed = Vec::new();
        for (id, node) in &mut self.nodes {
            let standing = match now.saturating_sub(node.heard_at) {
                silence if silence >= timeout => MemberStanding::Lost,
                silence if silence >= suspect_after => MemberStanding::Suspect,
                _ => node.standing,
            };
            if standing != node.standing && node.standing != MemberStanding::Lost {
                node.standing = standing;
                changed.push(id.clone());
            }
        }
        changed
    }

    /// How the nodes stand.
    pub(super) fn now(&self) -> NodesNow {
        let record = |(id, node): (&NodeId, &Node)| NodeRecord {
            id: id.clone(),
            life: node.place.life,
            life_since: node.life_since,
            standing: match node.standing {
                MemberStanding::Up => NodeStanding::Up,
                MemberStanding::Suspect => NodeStanding::Suspect { since: node.heard_at },
                MemberStanding::Lost => NodeStanding::Lost,
            },
        };
        NodesNow { records: self.nodes.iter().map(record).collect() }
    }

    /// What nodes hold of a job, node by node.
    pub(super) fn held_of(&self, job: &super::calls::JobKey) -> Vec<(NodePlace, HeldKey, Held)> {
        let of_job = |node: &Node| -> Vec<_> {
            let held = node.held.iter().filter(|(key, _)| key.job == *job);
            held.map(|(key, held)| (node.place.clone(), key.clone(), *held)).collect()
        };
        self.nodes.values().filter(|node| node.standing != MemberStanding::Lost).flat_map(of_job).collect()
    }

    /// Where partitions of a dataset are: on nodes that are not gone, one place for each, the newest
    /// attempt that is there.
    pub(super) fn locate(&self, job: &super::calls::JobKey, dataset: &DatasetId, wanted: Option<&[PartitionId]>) -> Vec<Located> {
        let mut found: BTreeMap<PartitionId, Located> = BTreeMap::new();
        for node in self.nodes.values().filter(|node| node.standing != MemberStanding::Lost) {
            let is_wanted =
                |key: &HeldKey| key.job == *job && key.dataset == *dataset && wanted.is_none_or(|wanted| wanted.contains(&key.partition));
            for (key, held) in node.held.iter().filter(|(key, _)| is_wanted(key)) {
                let is_readable = matches!(held.state, HeldState::Open | HeldState::Sealed);
                let rank = |held: &Held| (held.attempt.generation, held.state == HeldState::Sealed, held.attempt.attempt);
                let is_better = found.get(&key.partition).is_none_or(|known| rank(held) > rank(&known.held));
                if is_readable && is_better {
                    found.insert(key.partition, Located { partition: key.partition, held: *held, place: node.place.clone() });
                }
            }
        }
        found.into_values().collect()
    }

    /// Every node.
    pub(super) fn views(&self) -> Vec<NodeView> {
        let view = |node: &Node| NodeView { place: node.place.clone(), standing: node.standing, n_held: node.held.len() as u64 };
        self.nodes.values().map(view).collect()
    }
}

const fn absent(held: &Held) -> Held {
    Held { state: HeldState::Absent, ..*held }
}
