//! W8: the demo's own job. One consumer is killed when it has read 80 % of its share; the time from the
//! kill to the end of the job, against the whole job again from the kill, which is what an engine
//! without a store would do.

use crate::bench::Bench;
use crate::error::{LoadError, Result, ensure};
use crate::figure::{Figure, Goal, Side};
use crate::site::output;
use serde_json::Value;
use std::time::Duration;
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(1800);
const AT_PERCENT: &str = "80";
/// The job shall take at least this long in the full measurement.
const SHORTEST_JOB: f64 = 30.0;
const MOST_RUNS: usize = 3;

/// What one run of the demo says: seconds after the kill, seconds of the undisturbed job.
fn parse(document: &[u8]) -> Result<(f64, f64)> {
    let document: Value = serde_json::from_slice(document)?;
    let rows = document.get("rows").and_then(Value::as_array).ok_or_else(|| LoadError::check("the demo's document has no rows"))?;
    let killed = rows.iter().find(|row| row.get("after_fault_seconds").is_some_and(Value::is_f64));
    let killed = killed.ok_or_else(|| LoadError::check("the demo killed nobody"))?;
    let is_right = rows.iter().all(|row| row.get("is_as_promised").and_then(Value::as_bool) == Some(true));
    let recomputed = killed.get("recomputed_rows").and_then(Value::as_u64);
    ensure(is_right && recomputed == Some(0), || format!("the demo is not as promised: {rows:?}"))?;
    let number = |name: &str| killed.get(name).and_then(Value::as_f64).ok_or_else(|| LoadError::check(format!("the demo names no {name}")));
    Ok((number("after_fault_seconds")?, number("from_nothing_seconds")?))
}

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let (mut after, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.n_runs.min(MOST_RUNS) {
        let directory = bench.directory("w8-demo")?;
        let mut command = Command::new(&bench.binary);
        command.args(["demo", "--json", "--kinds", "blocking", "--only-consumer-killed", "--at-percent", AT_PERCENT]);
        command.args(["--scale", bench.plan.demo_scale, "--directory"]).arg(&directory);
        let said = output(&mut command, "the demo", LIMIT, &bench.clock).await?;
        let (after_kill, undisturbed) = parse(&said)?;
        bench.say(&format!("    {after_kill:.2} s after the kill, {undisturbed:.2} s undisturbed"));
        after.push(after_kill);
        whole.push(undisturbed);
        bench.directory("w8-demo")?;
    }
    let is_long = whole.iter().all(|seconds| *seconds >= SHORTEST_JOB);
    let name = format!("demo at scale {}, blocking, a consumer killed at {AT_PERCENT} %: kill to finish", bench.plan.demo_scale);
    let figure = Figure::new(name, "s", "the whole job again", (Side::of(after), Side::of(whole)), Goal::AtMost(0.2));
    Ok(vec![figure.note("job_takes_30_s_or_more", is_long)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(is_as_promised: bool, recomputed: u64) -> Vec<u8> {
        let undisturbed = json!({"is_as_promised": true, "from_nothing_seconds": 40.0, "recomputed_rows": 0});
        let killed = json!({"is_as_promised": is_as_promised, "after_fault_seconds": 4.5, "from_nothing_seconds": 40.0, "recomputed_rows": recomputed});
        json!({"rows": [undisturbed, killed]}).to_string().into_bytes()
    }

    #[test]
    fn the_row_with_the_fault_counts_and_only_when_all_is_as_promised() {
        assert_eq!(parse(&document(true, 0)).unwrap(), (4.5, 40.0));
        assert!(parse(&document(false, 0)).is_err());
        assert!(parse(&document(true, 1)).is_err());
        assert!(parse(br#"{"rows": []}"#).is_err());
    }
}
