//! `docs/performance.md`: what people read. Only what stands between two marks is written here; the
//! rest of the page is kept.

use crate::figure::{Figure, Goal};
use crate::plot::{Bar, Lines, Scale, Series, bars, short};
use crate::report::{Row, Setting};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const BEGIN: &str = "<!-- bench -->";
const END: &str = "<!-- /bench -->";
const MS_PER_DAY: u64 = 86_400_000;

/// `2026-12-01`. After Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
pub(crate) fn date(unix_ms: u64) -> String {
    let shifted = unix_ms / MS_PER_DAY + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), short)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn verdict(figure: &Figure) -> &'static str {
    match figure.is_met() {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "–",
    }
}

fn figures_table(rows: &[Row]) -> String {
    let mut out = "| id | figure | Forebay | reference | unit | Forebay is | goal | met |\n|---|---|---|---|---|---|---|---|\n".to_owned();
    for (row, figure) in rows.iter().flat_map(|row| row.figures.iter().map(move |figure| (row, figure))) {
        let _ = writeln!(
            out,
            "| {} | {} (against {}) | {} | {} | {} | {} | {} | {} |",
            row.id,
            cell(&figure.name),
            cell(figure.against),
            number(figure.ours.median()),
            number(figure.reference.median()),
            figure.unit,
            figure.verdict(),
            figure.goal.text(),
            verdict(figure)
        );
    }
    out
}

fn by_process(values: &BTreeMap<String, f64>) -> String {
    let parts: Vec<String> = values.iter().map(|(process, value)| format!("{process} {}", short(*value))).collect();
    if parts.is_empty() { "–".to_owned() } else { parts.join(", ") }
}

fn costs_table(rows: &[Row]) -> String {
    let mut out = "| id | figure | CPU s/GiB, with Forebay | CPU s/GiB, with the reference | peak MiB, with Forebay | peak MiB, with the reference |\n\
                   |---|---|---|---|---|---|\n"
        .to_owned();
    for (row, figure) in rows.iter().flat_map(|row| row.figures.iter().map(move |figure| (row, figure))) {
        let (mine, theirs) = (figure.ours.cpu(), figure.reference.cpu());
        if !mine.is_empty() {
            let peaks = (by_process(figure.ours.peaks()), by_process(figure.reference.peaks()));
            let name = cell(&figure.name);
            let _ = writeln!(out, "| {} | {name} | {} | {} | {} | {} |", row.id, by_process(&mine), by_process(&theirs), peaks.0, peaks.1);
        }
    }
    out
}

fn member<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("unknown")
}

/// The generated part of the page.
fn generated(setting: &Setting, rows: &[Row], plots: &[(String, String)]) -> String {
    let count = |name: &str| setting.machine.get(name).and_then(Value::as_u64).unwrap_or_default();
    let mut out = format!(
        "{BEGIN}\nMeasured {} at commit `{}`, profile `{}`, binary `{}`, on: {}, {} processors, {} MiB of memory, Linux {}, {}.\n\n",
        date(setting.measured_at_ms),
        setting.commit,
        setting.profile.name(),
        setting.binary,
        member(&setting.machine, "cpu"),
        count("cpus"),
        count("memory_mib"),
        member(&setting.machine, "kernel"),
        member(&setting.machine, "file_system"),
    );
    let references = ["nginx", "fio", "iperf3", "s3"].map(|name| member(&setting.references, name));
    let _ = writeln!(out, "References: {}.\n", references.join("; "));
    let met: Vec<&str> = rows.iter().filter(|row| row.is_met()).map(|row| row.id).collect();
    let missed: Vec<&str> = rows.iter().filter(|row| row.has_goal() && !row.is_met()).map(|row| row.id).collect();
    let list = |ids: &[&str]| if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
    let _ = writeln!(out, "Goals met: {}. Goals missed: {}.\n", list(&met), list(&missed));
    out += &figures_table(rows);
    out += "\nForebay and its reference are measured in turn in the same run; shown are medians of the runs, and \"Forebay is\" is the median\nof the ratios of the runs. Above 1 it is more than the reference (good for throughput), below 1 less (good for time and memory).\n\n";
    out += &costs_table(rows);
    for (name, title) in plots {
        let _ = writeln!(out, "\n![{title}](performance/{name}.svg)");
    }
    out + END + "\n"
}

/// The page with its generated part replaced; a page that has none gets it at its end.
pub(crate) fn renew(page: &str, setting: &Setting, rows: &[Row], plots: &[(String, String)]) -> String {
    let new = generated(setting, rows, plots);
    match (page.find(BEGIN), page.find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            let (before, after) = (page.get(..begin).unwrap_or_default(), page.get(end + END.len()..).unwrap_or_default());
            format!("{before}{}{after}", new.trim_end())
        }
        _ if page.trim().is_empty() => format!("# Performance\n\n`make bench` measures and writes this page.\n\n{new}"),
        _ => format!("{}\n\n{new}", page.trim_end()),
    }
}

/// Every plot that these rows give: file name without ending, title, content.
pub(crate) fn plots(rows: &[Row]) -> Vec<(String, String, String)> {
    let mut plots = Vec::new();
    let mut add = |name: &str, title: &str, svg: String| plots.push((name.to_owned(), title.to_owned(), svg));
    let with_goal: Vec<Bar> = rows.iter().flat_map(|row| row.figures.iter().filter_map(move |figure| bar(row, figure))).collect();
    add("goals", "How far each figure is from its goal", bars("How far each figure is from its goal", &with_goal));
    for row in rows {
        match row.id {
            "W2" => add("reads", "W2: throughput by connections", by_connections(row).svg()),
            "W4" => {
                for (figure, name) in row
                    .figures
                    .iter()
                    .filter(|figure| figure.notes.contains_key("ours_percentiles_us"))
                    .zip(["latency-small", "latency-large"])
                {
                    add(name, &format!("W4: {}", figure.name), by_percentile(figure).svg());
                }
            }
            "W5" => add("restarts", "W5: time to ready by partitions", by_partitions(row).svg()),
            "W7" => add("memory", "W7: memory over time", over_time(row).svg()),
            "growth" => {
                for cause in ["partitions", "clients"] {
                    add(&format!("growth-{cause}"), &format!("Costs by number of {cause}"), growth(row, cause).svg());
                }
            }
            _ => {}
        }
    }
    plots
}

fn bar(row: &Row, figure: &Figure) -> Option<Bar> {
    let margin = figure.margin()?;
    let name = format!("{} {}", row.id, figure.name);
    let name = if name.chars().count() > 68 { format!("{}…", name.chars().take(67).collect::<String>()) } else { name };
    let ratio = figure.ratio().map_or_else(|| "–".to_owned(), |ratio| format!("{} ×", short(ratio)));
    let sign = if matches!(figure.goal, Goal::AtMost(_)) { "≤" } else { "≥" };
    Some(Bar { name, margin, label: format!("{ratio} ({sign} {})", number(figure.goal.limit())) })
}

fn by_connections(row: &Row) -> Lines {
    let at = |figure: &Figure| figure.name.split(' ').next().and_then(|first| first.parse::<f64>().ok()).unwrap_or_default();
    let line = |name: &str, side: fn(&Figure) -> Option<f64>| Series {
        name: name.to_owned(),
        points: row.figures.iter().filter_map(|figure| Some((at(figure), side(figure)?))).collect(),
    };
    Lines {
        title: "W2: warm reads".to_owned(),
        x: ("connections".to_owned(), Scale::Log),
        y: ("MiB/s".to_owned(), Scale::Linear),
        series: vec![line("Forebay", |figure| figure.ours.median()), line("nginx sendfile", |figure| figure.reference.median())],
    }
}

fn by_percentile(figure: &Figure) -> Lines {
    let line = |name: &str, note: &str| {
        let percentiles = figure.notes.get(note).cloned().unwrap_or_default();
        // One in how many is slower.
        let slower = [("p50", 2.0), ("p90", 10.0), ("p99", 100.0), ("p999", 1000.0)];
        let points = slower.iter().filter_map(|(name, one_in)| Some((*one_in, percentiles.get(name)?.as_f64()?))).collect();
        Series { name: name.to_owned(), points }
    };
    Lines {
        title: format!("W4: {}", figure.name),
        x: ("one message in so many is slower".to_owned(), Scale::Log),
        y: ("µs".to_owned(), Scale::Log),
        series: vec![line("Forebay", "ours_percentiles_us"), line("bare relay", "reference_percentiles_us")],
    }
}

fn by_partitions(row: &Row) -> Lines {
    let counted = row.figures.iter().filter_map(|figure| Some((figure.notes.get("partitions")?.as_f64()?, figure.ours.median()?)));
    Lines {
        title: "W5: time to ready".to_owned(),
        x: ("sealed partitions".to_owned(), Scale::Log),
        y: ("seconds".to_owned(), Scale::Log),
        series: vec![Series { name: "Forebay".to_owned(), points: counted.collect() }],
    }
}

fn growth(row: &Row, cause: &str) -> Lines {
    Lines {
        title: format!("Costs by number of {cause}: partitions of 10 KiB, sealed and read back"),
        x: (cause.to_owned(), Scale::Log),
        y: ("each in its unit".to_owned(), Scale::Log),
        series: crate::workload::growth::lines(&row.figures, cause),
    }
}

fn over_time(row: &Row) -> Lines {
    let samples = row.figures.iter().find_map(|figure| figure.notes.get("samples_mib")?.as_array()).cloned().unwrap_or_default();
    let points = samples.iter().filter_map(Value::as_f64).zip(1_u32..).map(|(mib, number)| (f64::from(number), mib)).collect();
    let limit = row.figures.first().and_then(|figure| figure.reference.median()).unwrap_or_default();
    let end = crate::statistics::count(samples.len()).max(1.0);
    Lines {
        title: "W7: resident memory".to_owned(),
        x: ("samples".to_owned(), Scale::Linear),
        y: ("MiB".to_owned(), Scale::Linear),
        series: vec![
            Series { name: "Forebay".to_owned(), points },
            Series { name: "limit".to_owned(), points: vec![(0.0, limit), (end, limit)] },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Side;
    use crate::plan::Profile;
    use serde_json::json;

    fn setting() -> Setting {
        Setting {
            machine: json!({"cpu": "some", "cpus": 2, "memory_mib": 1, "kernel": "6", "file_system": "ext4"}),
            commit: "abc".to_owned(),
            measured_at_ms: 1_796_083_200_000,
            references: json!({"nginx": "nginx 1"}),
            profile: Profile::Quick,
            binary: "release".to_owned(),
        }
    }

    fn row(ours: f64) -> Row {
        let sides = (Side::of(vec![ours]), Side::of(vec![10.0]));
        Row { id: "W1", title: "t", figures: vec![Figure::new("a | b", "MiB/s", "fio", sides, Goal::AtLeast(0.9))] }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400_000), "2000-02-29");
        assert_eq!(date(1_796_083_200_000), "2026-12-01");
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let page = format!("# Mine\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n");
        let renewed = renew(&page, &setting(), &[row(9.5)], &[("goals".to_owned(), "g".to_owned())]);
        assert!(renewed.starts_with("# Mine\n\nBefore.") && renewed.ends_with("After.\n") && !renewed.contains("old"));
        assert_eq!(renew(&renewed, &setting(), &[row(9.5)], &[("goals".to_owned(), "g".to_owned())]), renewed);
        assert!(renew("", &setting(), &[], &[]).contains(BEGIN));
    }

    #[test]
    fn a_missed_goal_is_said_plainly() {
        let page = renew("", &setting(), &[row(5.0)], &[]);
        assert!(page.contains("Goals missed: W1") && page.contains("**no**") && page.contains("0.500 × the reference"), "{page}");
        assert!(page.contains("a \\| b"));
    }

    #[test]
    fn every_row_gives_a_bar() {
        let plots = plots(&[row(5.0), row(20.0)]);
        assert_eq!(plots.len(), 1);
        assert!(plots[0].2.contains("#d55e00") && plots[0].2.contains("#009e73"));
    }
}
