//! `report.json`: what programs read.
//!
//! `{"workloads": {"W1": {"ours", "reference", "ratio", "goal", "met", …}, …}, "machine", "commit", …}`.
//! A workload with several figures has the headline of the one that is furthest from its goal, lists
//! all under `figures`, and is met only when all of them are. What has no goal stands under `without_goals`.

use crate::figure::{Figure, Goal};
use crate::plan::Profile;
use serde_json::{Map, Value, json};

/// Where and when it was measured.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Processor, memory, kernel, file system.
    pub(crate) machine: Value,
    /// Commit of the checkout, with a mark when files differ from it.
    pub(crate) commit: String,
    /// Milliseconds since 1970.
    pub(crate) measured_at_ms: u64,
    /// Versions of the references.
    pub(crate) references: Value,
    /// The volumes.
    pub(crate) profile: Profile,
    /// How the binary was built.
    pub(crate) binary: String,
}

/// One workload.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// `W1` and so on.
    pub(crate) id: &'static str,
    /// What it does.
    pub(crate) title: &'static str,
    /// Its figures.
    pub(crate) figures: Vec<Figure>,
}

impl Row {
    /// The figure that is furthest from its goal.
    pub(crate) fn deciding(&self) -> Option<&Figure> {
        let with_margin = self.figures.iter().filter_map(|figure| Some((figure.margin()?, figure)));
        with_margin.min_by(|(one, _), (two, _)| one.total_cmp(two)).map(|(_, figure)| figure)
    }

    /// Whether all of its goals are met. Without any goal it is not.
    pub(crate) fn is_met(&self) -> bool {
        let verdicts: Vec<bool> = self.figures.iter().filter_map(Figure::is_met).collect();
        !verdicts.is_empty() && verdicts.into_iter().all(|is_met| is_met)
    }

    /// Whether it has any goal.
    pub(crate) fn has_goal(&self) -> bool {
        self.figures.iter().any(|figure| figure.goal != Goal::Beside)
    }

    fn to_json(&self) -> Value {
        let mut members = Map::new();
        members.insert("title".to_owned(), json!(self.title));
        if let Some(deciding) = self.deciding() {
            members.extend(deciding.headline());
        }
        members.insert("met".to_owned(), json!(self.is_met()));
        let figures: Vec<Value> = self.figures.iter().map(|figure| Value::Object(figure.to_json())).collect();
        members.insert("figures".to_owned(), json!(figures));
        Value::Object(members)
    }
}

/// The document.
pub(crate) fn document(setting: &Setting, rows: &[Row]) -> Value {
    let members = |has_goal: bool| -> Map<String, Value> {
        rows.iter().filter(|row| row.has_goal() == has_goal).map(|row| (row.id.to_owned(), row.to_json())).collect()
    };
    json!({
        "workloads": members(true),
        "without_goals": members(false),
        "machine": setting.machine,
        "commit": setting.commit,
        "measured_at_ms": setting.measured_at_ms,
        "references": setting.references,
        "profile": setting.profile.name(),
        "binary": setting.binary,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Side;

    fn figure(name: &str, ours: f64, reference: f64, goal: Goal) -> Figure {
        Figure::new(name, "MiB/s", "it", (Side::of(vec![ours]), Side::of(vec![reference])), goal)
    }

    fn setting() -> Setting {
        Setting {
            machine: json!({"cpus": 2}),
            commit: "abc".to_owned(),
            measured_at_ms: 1,
            references: json!({}),
            profile: Profile::Quick,
            binary: "release".to_owned(),
        }
    }

    #[test]
    fn every_workload_has_the_five_members_that_readers_look_for() {
        let row = Row { id: "W1", title: "t", figures: vec![figure("one", 9.0, 10.0, Goal::AtLeast(0.9))] };
        let document = document(&setting(), &[row]);
        let w1 = &document["workloads"]["W1"];
        assert_eq!((&w1["ours"], &w1["reference"], &w1["ratio"]), (&json!(9.0), &json!(10.0), &json!(0.9)));
        assert_eq!((&w1["goal"], &w1["met"]), (&json!(0.9), &json!(true)));
        assert_eq!(document["machine"]["cpus"], 2);
        assert_eq!(document["commit"], "abc");
    }

    #[test]
    fn one_missed_figure_misses_the_workload_and_stands_in_its_headline() {
        let figures = vec![
            figure("good", 3.0, 1.0, Goal::AtLeast(1.0)),
            figure("bad", 5.0, 2.0, Goal::AtMost(2.0)),
            figure("beside", 1.0, 100.0, Goal::Beside),
        ];
        let row = Row { id: "W4", title: "t", figures };
        assert!(!row.is_met());
        let w4 = row.to_json();
        assert_eq!((&w4["ratio"], &w4["goal"], &w4["met"]), (&json!(2.5), &json!(2.0), &json!(false)));
        assert_eq!(w4["figures"].as_array().map(Vec::len), Some(3));
        assert_eq!(w4["figures"][2]["met"], Value::Null);
    }

    #[test]
    fn what_has_no_goal_is_no_workload() {
        let row = Row { id: "growth", title: "t", figures: vec![figure("one", 9.0, 10.0, Goal::Beside)] };
        let document = document(&setting(), &[row]);
        assert_eq!(document["workloads"], json!({}));
        assert_eq!(document["without_goals"]["growth"]["figures"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn a_workload_without_figures_is_not_met() {
        let row = Row { id: "W9", title: "t", figures: vec![] };
        assert_eq!(row.to_json()["met"], json!(false));
    }
}
