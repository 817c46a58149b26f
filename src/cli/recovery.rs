//! `forebay jobs`, `forebay plan` and `forebay why`: how jobs recover, and why.

use super::connection::{ConnectionArguments, failure};
use super::output::{print, write_out};
use super::{Failure, runtime};
use clap::Args;
use forebay_client::JobHandle;
use forebay_protocol::ErrorCode;
use forebay_protocol::plans::{BecauseDocument, PlanDocument, RuleName};
use forebay_protocol::recovery::{PlanRequest, StrategyName, TaskName};
use serde::Serialize;
use serde_json::{Value, json};
use std::str::FromStr;
use store_api::JobId;

/// Arguments of `jobs`.
#[derive(Debug, Args)]
pub(super) struct JobsArguments {
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(super) struct PlanArguments {
    /// The job
    job: JobId,
    /// Shows the plan that would follow if what is named below failed now; changes nothing
    #[arg(long)]
    dry_run: bool,
    /// A task that would fail, as VERTEX#INDEX; may be repeated
    #[arg(long, value_name = "TASK", requires = "dry_run")]
    task: Vec<Task>,
    /// A worker that would be gone; may be repeated
    #[arg(long, value_name = "WORKER", requires = "dry_run")]
    worker: Vec<String>,
    /// A node that would be gone; may be repeated
    #[arg(long, value_name = "NODE", requires = "dry_run")]
    node: Vec<String>,
    /// Plans by region, individual or full instead of the job's strategy
    #[arg(long, value_name = "STRATEGY", requires = "dry_run", value_parser = parse_strategy)]
    strategy: Option<StrategyName>,
    /// Shows this plan instead of the newest
    #[arg(long, value_name = "NUMBER", conflicts_with = "dry_run")]
    number: Option<u64>,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub(super) struct WhyArguments {
    /// The job
    job: JobId,
    /// The task, as VERTEX#INDEX
    task: Task,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// A task as a person writes it: `VERTEX#INDEX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task(TaskName);

impl FromStr for Task {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (vertex, index) = text.rsplit_once('#').filter(|(vertex, _)| !vertex.is_empty()).ok_or("a task is VERTEX#INDEX")?;
        let index = index.parse().map_err(|_| format!("{index:?} is no index of a task"))?;
        Ok(Self(TaskName { vertex: vertex.to_owned(), index }))
    }
}

fn parse_strategy(text: &str) -> Result<StrategyName, String> {
    match text {
        "region" => Ok(StrategyName::Region),
        "individual" => Ok(StrategyName::Individual),
        "full" => Ok(StrategyName::Full),
        _ => Err("a strategy is region, individual or full".to_owned()),
    }
}

fn job_of(connection: &ConnectionArguments, job: &JobId) -> Result<JobHandle, Failure> {
    connection.client()?.job(job.as_str()).map_err(failure)
}

fn to_value(answer: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|error| Failure::failed(error.to_string()))
}

/// Lists the jobs that have a graph, and where each stands.
pub(super) fn jobs(arguments: &JobsArguments) -> Result<(), Failure> {
    let is_json = arguments.connection.json;
    runtime()?.block_on(async {
        let client = arguments.connection.client()?;
        for job in client.jobs().await.map_err(failure)?.jobs {
            let graph = match client.job(&job.job).map_err(failure)?.graph().await {
                Ok(graph) => graph,
                Err(error) if error.code() == Some(ErrorCode::UnknownGraph) => continue,
                Err(error) => return Err(failure(error)),
            };
            let value = to_value(&graph)?;
            if is_json {
                print(&value, true)?;
                continue;
            }
            let state = value.get("state").and_then(Value::as_str).unwrap_or_default().to_owned();
            let done = format!("{}/{}", graph.n_finished, graph.n_tasks);
            write_out(
                format!("{}\t{state}\t{done} finished\t{} plans\t{} workers\n", graph.job, graph.n_plans, graph.n_workers).as_bytes(),
            )?;
        }
        Ok(())
    })
}

/// Shows a plan: the newest, one by its number, or what would follow.
pub(super) fn plan(arguments: &PlanArguments) -> Result<(), Failure> {
    let plan = runtime()?.block_on(async {
        let job = job_of(&arguments.connection, &arguments.job)?;
        if arguments.dry_run {
            let request = PlanRequest {
                tasks: arguments.task.iter().map(|task| task.0.clone()).collect(),
                workers: arguments.worker.clone(),
                nodes: arguments.node.clone(),
                strategy: arguments.strategy,
                ..PlanRequest::default()
            };
            return job.plan_dry_run(&request).await.map_err(failure);
        }
        let newest = || async { job.graph().await.map(|graph| graph.n_plans).map_err(failure) };
        let number = match arguments.number {
            Some(number) => number,
            None => newest().await?,
        };
        job.plan(number).await.map_err(failure)
    })?;
    if arguments.connection.json { print(&to_value(&plan)?, true) } else { write_out(plan_text(&plan).as_bytes()) }
}

/// A plan for people.
fn plan_text(plan: &PlanDocument) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    line(format!("plan {} of {}: {} by {}, {}", plan.plan, plan.job, name(plan.verdict), name(plan.strategy), name(plan.progress)));
    for because in &plan.because {
        let attempt = plan.restart.iter().find(|one| one.vertex == because.vertex && one.index == because.index);
        let attempt = attempt.map(|one| format!(" as {}", one.attempt)).unwrap_or_default();
        line(format!("  restart {}#{}{attempt}: {}", because.vertex, because.index, reason(because)));
    }
    for one in &plan.cancel {
        line(format!("  stop    {}#{} {}", one.vertex, one.index, one.attempt));
    }
    for row in &plan.reread {
        line(format!("  re-read {}/{} {} by {}", row.dataset, row.partition, row.attempt, row.vertex));
    }
    for one in &plan.release {
        line(format!("  release {}/{} {}", one.dataset, one.partition, one.attempt));
    }
    let (cost, full) = (plan.cost, plan.cost_of_full);
    line(format!("  tasks to run again: {} (everything: {})", cost.n_tasks, full.n_tasks));
    line(format!(
        "  bytes read again: {}; computed again: {} (everything: {})",
        cost.reread_bytes, cost.recomputed_bytes, full.recomputed_bytes
    ));
    text
}

/// A word of the protocol.
fn name(word: impl Serialize) -> String {
    let value = serde_json::to_value(word).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn reason(because: &BecauseDocument) -> String {
    let via = because.via.as_ref().map(|task| format!("{}#{}", task.vertex, task.index)).unwrap_or_default();
    let over = match (&because.dataset, because.partition) {
        (Some(dataset), Some(partition)) => format!("{dataset}/{partition}"),
        _ => String::new(),
    };
    match because.rule {
        RuleName::Failed => "it failed".to_owned(),
        RuleName::WorkerLost => "its worker is gone".to_owned(),
        RuleName::Stopped => "an earlier plan stopped it".to_owned(),
        RuleName::ReplayedDifferently => "its re-run wrote something else".to_owned(),
        RuleName::Need => format!("{via} needs {over}, which is not to be had any more"),
        RuleName::Taint => format!("it has read {over}, which {via} writes anew"),
        RuleName::Gang => format!("it restarts together with {via}"),
        RuleName::Everything => "everything restarts".to_owned(),
    }
}

/// The chain of reasons in a plan, from the task back to a failure or a loss.
fn chain<'a>(plan: &'a PlanDocument, task: &TaskName) -> Vec<&'a BecauseDocument> {
    let (mut found, mut next) = (Vec::new(), Some(task.clone()));
    while let Some(task) = next {
        let because = plan.because.iter().find(|because| because.vertex == task.vertex && because.index == task.index);
        let Some(because) = because.filter(|_| found.len() < plan.because.len()) else { break };
        found.push(because);
        next = because.via.clone();
    }
    found
}

/// Shows why a task was restarted, plan by plan, the newest first.
pub(super) fn why(arguments: &WhyArguments) -> Result<(), Failure> {
    let task = &arguments.task.0;
    runtime()?.block_on(async {
        let job = job_of(&arguments.connection, &arguments.job)?;
        let is_known = job.tasks().await.map_err(failure)?.tasks.iter().any(|one| one.vertex == task.vertex && one.index == task.index);
        if !is_known {
            return Err(Failure::usage(format!("the job has no task {}#{}", task.vertex, task.index)));
        }
        let mut n_found = 0_usize;
        for summary in job.plans().await.map_err(failure)?.plans.iter().rev() {
            let plan = job.plan(summary.plan).await.map_err(failure)?;
            let reasons = chain(&plan, task);
            if reasons.is_empty() {
                continue;
            }
            n_found += 1;
            if arguments.connection.json {
                print(&json!({"plan": plan.plan, "verdict": to_value(plan.verdict)?, "chain": to_value(&reasons)?}), true)?;
                continue;
            }
            write_out(format!("plan {}\n", plan.plan).as_bytes())?;
            for (depth, because) in reasons.into_iter().enumerate() {
                let indent = "  ".repeat(depth + 1);
                write_out(format!("{indent}{}#{}: {}\n", because.vertex, because.index, reason(because)).as_bytes())?;
            }
        }
        if n_found == 0 && !arguments.connection.json {
            write_out(format!("no plan has restarted {}#{}\n", task.vertex, task.index).as_bytes())?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_a_vertex_and_an_index() {
        let task: Task = "a.b#3".parse().unwrap();
        assert_eq!(task.0, TaskName { vertex: "a.b".to_owned(), index: 3 });
        for text in ["", "map", "#1", "map#", "map#-1", "map#x"] {
            assert!(text.parse::<Task>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_chain_of_reasons_leads_back_to_the_failure_and_ends() {
        let because = |vertex: &str, rule, via: Option<&str>| BecauseDocument {
            vertex: vertex.to_owned(),
            index: 0,
            rule,
            via: via.map(|vertex| TaskName { vertex: vertex.to_owned(), index: 0 }),
            dataset: Some("d".to_owned()),
            partition: Some(0),
        };
        let mut plan = PlanDocument {
            job: "q1".to_owned(),
            plan: 1,
            coordinator_epoch: 1,
            job_epoch: 1,
            graph_version: 0,
            progress: forebay_protocol::plans::PlanProgress::Ready,
            strategy: StrategyName::Region,
            verdict: forebay_protocol::plans::VerdictName::Restart,
            restart: Vec::new(),
            cancel: Vec::new(),
            release: Vec::new(),
            keep: Vec::new(),
            reread: Vec::new(),
            resume: Vec::new(),
            waves: Vec::new(),
            because: vec![because("a", RuleName::Need, Some("b")), because("b", RuleName::Failed, None)],
            obstacles: Vec::new(),
            committed: Vec::new(),
            lossy: false,
            delay_ms: 0,
            cost: Default::default(),
            cost_of_full: Default::default(),
        };
        let task = |vertex: &str| TaskName { vertex: vertex.to_owned(), index: 0 };
        let names = |plan: &PlanDocument| -> Vec<String> { chain(plan, &task("a")).iter().map(|one| one.vertex.clone()).collect() };
        assert_eq!(names(&plan), ["a", "b"]);
        assert!(plan_text(&plan).contains("restart a#0: b#0 needs d/0"), "{}", plan_text(&plan));
        plan.because = vec![because("a", RuleName::Gang, Some("b")), because("b", RuleName::Gang, Some("a"))];
        assert_eq!(names(&plan).len(), 2, "a circle ends");
        assert!(chain(&plan, &task("c")).is_empty());
    }
}
