//! The table: what each fault cost, and whether every promise was kept.

use super::DemoError;
use super::scenario::{Fault, Kind, Measured};
use super::workload::Sums;
use serde::Serialize;
use std::io::Write as _;
use std::time::Duration;

const MIB: f64 = 1024.0 * 1024.0;

/// One row.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    kind: &'static str,
    fault: &'static str,
    /// Whether the result equals the one without any shuffle.
    is_result_right: bool,
    /// Bytes that consumers read, repeats included.
    read_bytes: u64,
    /// Bytes that had been read before and were read again instead of being made again.
    reread_bytes: u64,
    /// Rows that producers made again.
    recomputed_rows: u64,
    /// Whether the class promises that none are.
    promises_no_recompute: bool,
    /// Whether the zombie producer was refused as fenced.
    #[serde(skip_serializing_if = "Option::is_none")]
    zombie_refused: Option<bool>,
    total_seconds: f64,
    /// From the fault to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_fault_seconds: Option<f64>,
    /// The whole job again from nothing: the undisturbed run of this kind.
    from_nothing_seconds: f64,
    /// Whether all of it is as promised.
    is_as_promised: bool,
}

impl Outcome {
    /// A row from what a run took.
    pub(crate) fn new(kind: Kind, fault: Fault, measured: &Measured, from_nothing: Duration, is_result_right: bool) -> Self {
        let promises_no_recompute = fault.promises_no_recompute();
        let keeps_promise = !promises_no_recompute || measured.recomputed_rows == 0;
        Self {
            kind: kind.name(),
            fault: fault.name(),
            is_result_right,
            read_bytes: measured.read_bytes,
            reread_bytes: measured.reread_bytes,
            recomputed_rows: measured.recomputed_rows,
            promises_no_recompute,
            zombie_refused: measured.zombie_refused,
            total_seconds: measured.total.as_secs_f64(),
            after_fault_seconds: measured.after_fault.map(|after| after.as_secs_f64()),
            from_nothing_seconds: from_nothing.as_secs_f64(),
            is_as_promised: is_result_right && keeps_promise && measured.zombie_refused != Some(false),
        }
    }
}

/// All rows, and what they are held against.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    scale: f64,
    n_producers: u32,
    n_consumers: u32,
    n_lines: u64,
    n_groups: usize,
    without_shuffle_seconds: f64,
    /// What the durable kind lies on in this demo.
    durable_scope: &'static str,
    rows: Vec<Outcome>,
    #[serde(skip)]
    bytes_per_consumer: u64,
}

impl Report {
    /// A report without rows.
    pub(crate) fn new(scale: f64, n_producers: u32, n_consumers: u32, without_shuffle: Duration, expected: &Sums) -> Self {
        Self {
            scale,
            n_producers,
            n_consumers,
            n_lines: expected.values().map(|sum| sum.n_lines).sum(),
            n_groups: expected.len(),
            without_shuffle_seconds: without_shuffle.as_secs_f64(),
            durable_scope: "a local directory: durable as its file system",
            rows: Vec::new(),
            bytes_per_consumer: 0,
        }
    }

    /// What a consumer reads in an undisturbed run.
    pub(crate) const fn bytes_per_consumer(&self) -> u64 {
        self.bytes_per_consumer
    }

    /// Learns it from one.
    pub(crate) fn learn_bytes(&mut self, read_bytes: u64, n_consumers: u32) {
        self.bytes_per_consumer = read_bytes / u64::from(n_consumers.max(1));
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.rows.push(outcome);
    }

    /// Rows that are not as promised.
    pub(crate) fn n_differing(&self) -> usize {
        self.rows.iter().filter(|row| !row.is_as_promised).count()
    }

    /// Prints it on standard output: a table, or one JSON document with the same rows and nothing
    /// else beside it.
    pub(crate) fn print(&self, as_json: bool) -> Result<(), DemoError> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", self.text(as_json)?)?;
        out.flush()?;
        Ok(())
    }

    fn text(&self, as_json: bool) -> Result<String, DemoError> {
        if as_json { Ok(serde_json::to_string_pretty(self)?) } else { Ok(self.table()) }
    }

    fn table(&self) -> String {
        let head = format!(
            "TPC-H scale {}, {} lines joined into {} groups, {} producers x {} consumers; without any shuffle: {:.2} s\n\
             durable lies on {}\n\n",
            self.scale, self.n_lines, self.n_groups, self.n_producers, self.n_consumers, self.without_shuffle_seconds, self.durable_scope
        );
        let titles =
            ["kind", "fault", "result", "read MiB", "re-read MiB", "recomputed rows", "after fault s", "from nothing s", "promise"];
        let mut lines = vec![titles.map(str::to_owned)];
        lines.extend(self.rows.iter().map(cells));
        let widths: Vec<usize> =
            (0..titles.len()).map(|at| lines.iter().filter_map(|line| line.get(at)).map(String::len).max().unwrap_or(0)).collect();
        let render = |line: &[String; 9]| {
            let padded = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
                let is_text = at < 3 || at == titles.len() - 1;
                if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        head + &lines.iter().map(render).collect::<Vec<_>>().join("\n")
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people, rounded to a tenth")]
fn cells(row: &Outcome) -> [String; 9] {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB);
    let promise = match (row.is_as_promised, row.zombie_refused) {
        (false, _) => "NOT KEPT",
        (true, Some(true)) => "kept, zombie refused",
        (true, _) => "kept",
    };
    [
        row.kind.to_owned(),
        row.fault.to_owned(),
        if row.is_result_right { "right" } else { "WRONG" }.to_owned(),
        mib(row.read_bytes),
        mib(row.reread_bytes),
        row.recomputed_rows.to_string(),
        row.after_fault_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}")),
        format!("{:.2}", row.from_nothing_seconds),
        promise.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(fault: Fault, recomputed_rows: u64, zombie_refused: Option<bool>, is_right: bool) -> Outcome {
        let measured = Measured { recomputed_rows, zombie_refused, ..Measured::default() };
        Outcome::new(Kind::Blocking, fault, &measured, Duration::from_secs(1), is_right)
    }

    #[test]
    fn a_wrong_result_a_recompute_or_an_unrefused_zombie_is_not_as_promised() {
        assert!(outcome(Fault::ConsumerKilled, 0, None, true).is_as_promised);
        assert!(!outcome(Fault::ConsumerKilled, 0, None, false).is_as_promised);
        assert!(!outcome(Fault::NodeRestarted, 1, None, true).is_as_promised);
        assert!(outcome(Fault::ProducerSuperseded, 1, Some(true), true).is_as_promised);
        assert!(!outcome(Fault::ProducerSuperseded, 1, Some(false), true).is_as_promised);
    }

    #[test]
    fn the_json_form_is_one_document_with_the_rows_of_the_table() {
        let mut report = Report::new(0.1, 2, 3, Duration::from_secs(1), &Sums::new());
        report.add(outcome(Fault::None, 0, None, true));
        report.add(outcome(Fault::ProducerSuperseded, 7, Some(true), true));
        report.add(outcome(Fault::NodeRestarted, 9, None, false));
        let text = report.text(true).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = document["rows"].as_array().unwrap();
        let table = report.text(false).unwrap();
        let lines: Vec<&str> = table.lines().skip(4).collect();
        assert_eq!((rows.len(), lines.len()), (3, 3), "{table}");
        for (row, line) in rows.iter().zip(lines) {
            let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
            assert_eq!((row["kind"].as_str(), row["fault"].as_str()), (Some(cells[0]), Some(cells[1])), "{line}");
            assert_eq!(row["is_result_right"], cells[2] == "right", "{line}");
            assert_eq!(row["recomputed_rows"].as_u64().map(|rows| rows.to_string()).as_deref(), Some(cells[5]), "{line}");
            assert_eq!(row["is_as_promised"], cells[8].starts_with("kept"), "{line}");
        }
        assert_eq!(rows[1]["zombie_refused"], true);
        assert!(rows[0].get("zombie_refused").is_none());
        assert_eq!((document["n_producers"].as_u64(), document["n_consumers"].as_u64()), (Some(2), Some(3)));
    }

    #[test]
    fn the_table_shows_what_is_not_kept() {
        let mut report = Report::new(0.1, 2, 3, Duration::from_secs(1), &Sums::new());
        report.add(outcome(Fault::None, 0, None, true));
        report.add(outcome(Fault::NodeRestarted, 7, None, false));
        let table = report.table();
        assert!(table.contains("NOT KEPT") && table.contains("WRONG"), "{table}");
        assert_eq!(report.n_differing(), 1);
    }
}
