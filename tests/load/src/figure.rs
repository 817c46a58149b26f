//! One figure: what was measured of both sides, and the goal.

use crate::statistics::{median, ratios, spread};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Which ratios are good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// The ratio must reach this: throughput.
    AtLeast(f64),
    /// The ratio must not exceed this: time, latency, memory.
    AtMost(f64),
    /// None: stands beside the others.
    Beside,
}

impl Goal {
    /// Whether a ratio is good; `None` when there is no goal.
    pub(crate) fn is_met(self, ratio: Option<f64>) -> Option<bool> {
        match (self, ratio) {
            (Self::Beside, _) => None,
            (_, None) => Some(false),
            (Self::AtLeast(limit), Some(ratio)) => Some(ratio >= limit),
            (Self::AtMost(limit), Some(ratio)) => Some(ratio <= limit),
        }
    }

    /// How far a ratio is on the good side: 1 is just met.
    pub(crate) fn margin(self, ratio: f64) -> Option<f64> {
        match self {
            Self::AtLeast(limit) => Some(ratio / limit),
            Self::AtMost(_) if ratio <= 0.0 => Some(f64::INFINITY),
            Self::AtMost(limit) => Some(limit / ratio),
            Self::Beside => None,
        }
    }

    /// The limit.
    pub(crate) const fn limit(self) -> Option<f64> {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) => Some(limit),
            Self::Beside => None,
        }
    }

    /// For people.
    pub(crate) fn text(self) -> String {
        match self {
            Self::AtLeast(limit) => format!("≥ {limit:.2} ×"),
            Self::AtMost(limit) => format!("≤ {limit:.2} ×"),
            Self::Beside => "–".to_owned(),
        }
    }

    const fn direction(self) -> Option<&'static str> {
        match self {
            Self::AtLeast(_) => Some("at_least"),
            Self::AtMost(_) => Some("at_most"),
            Self::Beside => None,
        }
    }
}

/// What one measurement gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    /// The value of the figure.
    pub(crate) value: f64,
    /// Processor seconds per GiB moved, by process.
    pub(crate) cpu_per_gib: BTreeMap<String, f64>,
    /// Peak memory so far, in MiB, by process.
    pub(crate) peak_mib: BTreeMap<String, f64>,
}

impl Reading {
    /// A value without costs.
    pub(crate) fn of(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

/// All measurements of one side.
#[derive(Debug, Clone, Default)]
pub(crate) struct Side {
    /// Values, by run.
    pub(crate) runs: Vec<f64>,
    cpu_per_gib: BTreeMap<String, Vec<f64>>,
    peak_mib: BTreeMap<String, f64>,
}

impl Side {
    /// Adds one.
    pub(crate) fn add(&mut self, reading: &Reading) {
        self.runs.push(reading.value);
        for (process, seconds) in &reading.cpu_per_gib {
            self.cpu_per_gib.entry(process.clone()).or_default().push(*seconds);
        }
        for (process, peak) in &reading.peak_mib {
            let highest = self.peak_mib.entry(process.clone()).or_default();
            *highest = highest.max(*peak);
        }
    }

    /// A side whose value is fixed: a limit.
    pub(crate) fn fixed(value: f64, n_runs: usize) -> Self {
        Self { runs: vec![value; n_runs], ..Self::default() }
    }

    /// A side that was measured without costs.
    pub(crate) fn of(runs: Vec<f64>) -> Self {
        Self { runs, ..Self::default() }
    }

    /// The middle of all runs.
    pub(crate) fn median(&self) -> Option<f64> {
        median(&self.runs)
    }

    /// Processor seconds per GiB by process, the middle of all runs.
    pub(crate) fn cpu(&self) -> BTreeMap<String, f64> {
        self.cpu_per_gib.iter().filter_map(|(process, seconds)| Some((process.clone(), median(seconds)?))).collect()
    }

    /// Peak memory by process, in MiB.
    pub(crate) const fn peaks(&self) -> &BTreeMap<String, f64> {
        &self.peak_mib
    }

    fn to_json(&self) -> Value {
        json!({
            "median": self.median(),
            "spread": spread(&self.runs),
            "runs": self.runs,
            "cpu_seconds_per_gib": self.cpu(),
            "peak_memory_mib": self.peak_mib,
        })
    }
}

/// One figure.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// What was done.
    pub(crate) name: String,
    /// Unit of both values.
    pub(crate) unit: &'static str,
    /// What it is held against.
    pub(crate) against: &'static str,
    /// Forebay.
    pub(crate) ours: Side,
    /// The reference.
    pub(crate) reference: Side,
    /// The goal, for the ratio of ours to the reference.
    pub(crate) goal: Goal,
    /// What else was seen.
    pub(crate) notes: BTreeMap<String, Value>,
}

impl Figure {
    /// A figure without notes.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, against: &'static str, sides: (Side, Side), goal: Goal) -> Self {
        Self { name: name.into(), unit, against, ours: sides.0, reference: sides.1, goal, notes: BTreeMap::new() }
    }

    /// Adds what else was seen.
    #[must_use]
    pub(crate) fn note(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.notes.insert(name.to_owned(), value.into());
        self
    }

    /// The median of the ratios of the runs, each of which measured both sides.
    pub(crate) fn ratio(&self) -> Option<f64> {
        median(&ratios(&self.ours.runs, &self.reference.runs))
    }

    /// Whether the goal is met; `None` when there is none.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.goal.is_met(self.ratio())
    }

    /// How far it is on the good side; `None` without a goal.
    pub(crate) fn margin(&self) -> Option<f64> {
        match (self.goal, self.ratio()) {
            (Goal::Beside, _) => None,
            (_, None) => Some(0.0),
            (goal, Some(ratio)) => goal.margin(ratio),
        }
    }

    /// What a reader must see at once: who was faster, and by how much.
    pub(crate) fn verdict(&self) -> String {
        match self.ratio() {
            None => "not measured".to_owned(),
            Some(ratio) if (ratio - 1.0).abs() < 0.005 => "equal".to_owned(),
            Some(ratio) if ratio > 1.0 => format!("{ratio:.2} × the reference"),
            Some(ratio) => format!("{ratio:.3} × the reference"),
        }
    }

    /// Its members in the report.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("name".to_owned(), json!(self.name));
        members.insert("unit".to_owned(), json!(self.unit));
        members.insert("against".to_owned(), json!(self.against));
        members.extend(self.headline());
        members.insert("goal_is".to_owned(), json!(self.goal.direction()));
        members.insert("ratio_runs".to_owned(), json!(ratios(&self.ours.runs, &self.reference.runs)));
        members.insert("ours_detail".to_owned(), self.ours.to_json());
        members.insert("reference_detail".to_owned(), self.reference.to_json());
        members.insert("notes".to_owned(), json!(self.notes));
        members
    }

    /// The members that every workload has too.
    pub(crate) fn headline(&self) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("ours".to_owned(), json!(self.ours.median()));
        members.insert("reference".to_owned(), json!(self.reference.median()));
        members.insert("ratio".to_owned(), json!(self.ratio()));
        members.insert("goal".to_owned(), json!(self.goal.limit()));
        members.insert("met".to_owned(), json!(self.is_met()));
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ours: &[f64], reference: &[f64], goal: Goal) -> Figure {
        Figure::new("x", "MiB/s", "y", (Side::of(ours.to_vec()), Side::of(reference.to_vec())), goal)
    }

    #[test]
    fn a_goal_is_met_at_its_limit_and_not_beyond() {
        assert_eq!(figure(&[9.0], &[10.0], Goal::AtLeast(0.9)).is_met(), Some(true));
        assert_eq!(figure(&[8.9], &[10.0], Goal::AtLeast(0.9)).is_met(), Some(false));
        assert_eq!(figure(&[20.0], &[10.0], Goal::AtMost(2.0)).is_met(), Some(true));
        assert_eq!(figure(&[20.1], &[10.0], Goal::AtMost(2.0)).is_met(), Some(false));
        assert_eq!(figure(&[20.1], &[10.0], Goal::Beside).is_met(), None);
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        assert_eq!(figure(&[], &[], Goal::AtLeast(0.1)).is_met(), Some(false));
        assert_eq!(figure(&[1.0], &[0.0], Goal::AtMost(9.0)).is_met(), Some(false));
    }

    #[test]
    fn the_ratio_is_of_pairs_of_runs_and_not_of_medians() {
        let figure = figure(&[1.0, 10.0, 100.0], &[2.0, 5.0, 100.0], Goal::AtLeast(1.0));
        assert_eq!(figure.ratio(), Some(1.0));
        assert_eq!(figure.ours.median(), Some(10.0));
    }

    #[test]
    fn the_margin_of_the_worse_figure_is_smaller_in_both_directions() {
        assert_eq!(figure(&[5.0], &[10.0], Goal::AtLeast(1.0)).margin(), Some(0.5));
        assert_eq!(figure(&[5.0], &[10.0], Goal::AtMost(1.0)).margin(), Some(2.0));
        assert_eq!(figure(&[0.0], &[10.0], Goal::AtMost(1.0)).margin(), Some(f64::INFINITY));
    }

    #[test]
    fn peaks_are_the_highest_and_processor_time_is_the_middle() {
        let mut side = Side::default();
        for (cpu, peak) in [(1.0, 30.0), (5.0, 10.0), (2.0, 20.0)] {
            let by = |value| BTreeMap::from([("node".to_owned(), value)]);
            side.add(&Reading { value: 1.0, cpu_per_gib: by(cpu), peak_mib: by(peak) });
        }
        assert_eq!(side.cpu().get("node"), Some(&2.0));
        assert_eq!(side.peaks().get("node"), Some(&30.0));
    }
}
