//! Recovery of a job, for its driver: the graph, reports, plans and events.

use crate::error::{ClientError, Result};
use crate::job::JobHandle;
use crate::retry::Attempts;
use crate::sse::SseParser;
use crate::transport::{Answer, Failure};
use forebay_protocol::members::WorkerList;
use forebay_protocol::plans::{PlanDocument, PlanList};
use forebay_protocol::recovery::{
    FailureRequest, GraphDocument, GraphRequest, LocateDocument, LocateRequest, PlanRequest, RecoveryEventDocument, RecoveryEventKind,
    ReportResults, TaskList, TaskReport, TaskReports,
};
use http::Method;

impl JobHandle {
    /// Declares the shape of the job and how it recovers. Idempotent. Needs the owner's epoch.
    pub async fn put_graph(&self, graph: &GraphRequest) -> Result<GraphDocument> {
        Ok(self.caller.document(&self.owner_call(Method::PUT, "/graph")?.json(graph)?).await?.0)
    }

    /// The job as the coordinator sees it.
    pub async fn graph(&self) -> Result<GraphDocument> {
        Ok(self.caller.document(&self.call(Method::GET, "/graph")?).await?.0)
    }

    /// Every task.
    pub async fn tasks(&self) -> Result<TaskList> {
        Ok(self.caller.document(&self.call(Method::GET, "/tasks")?).await?.0)
    }

    /// Reports what attempts have come to. Repeating it is harmless.
    pub async fn report(&self, reports: Vec<TaskReport>) -> Result<ReportResults> {
        let request = TaskReports { coordinator_epoch: None, reports };
        Ok(self.caller.document(&self.call(Method::POST, "/tasks")?.json(&request)?).await?.0)
    }

    /// Reports failures that are not those of one attempt. Repeating it is harmless.
    pub async fn report_failures(&self, failures: &FailureRequest) -> Result<ReportResults> {
        Ok(self.caller.document(&self.call(Method::POST, "/failures")?.json(failures)?).await?.0)
    }

    /// The plan that would follow if this failed now; changes nothing.
    pub async fn plan_dry_run(&self, request: &PlanRequest) -> Result<PlanDocument> {
        Ok(self.caller.document(&self.call(Method::POST, "/plan?dry_run=true")?.json(request)?).await?.0)
    }

    /// The plans so far.
    pub async fn plans(&self) -> Result<PlanList> {
        Ok(self.caller.document(&self.call(Method::GET, "/plans")?).await?.0)
    }

    /// One plan.
    pub async fn plan(&self, number: u64) -> Result<PlanDocument> {
        Ok(self.caller.document(&self.call(Method::GET, &format!("/plans/{number}"))?).await?.0)
    }

    /// The workers of the job.
    pub async fn workers(&self) -> Result<WorkerList> {
        Ok(self.caller.document(&self.call(Method::GET, "/workers")?).await?.0)
    }

    /// Where partitions are, as far as the coordinator was told.
    pub async fn locate(&self, request: &LocateRequest) -> Result<LocateDocument> {
        Ok(self.caller.document(&self.call(Method::POST, "/locate")?.json(request)?).await?.0)
    }

    /// Follows the job's recovery, from now on or after a cursor of an earlier event.
    #[must_use]
    pub fn recovery_events(&self, after: Option<String>) -> RecoveryEvents {
        let attempts = self.caller.attempts();
        RecoveryEvents { job: self.clone(), cursor: after, answer: None, is_first: true, parser: SseParser::default(), attempts }
    }
}

/// The recovery events of a job. A `reset` says that some may have been missed: ask for the tasks
/// and plans, then follow on.
#[derive(Debug)]
pub struct RecoveryEvents {
    job: JobHandle,
    cursor: Option<String>,
    answer: Option<Answer>,
    is_first: bool,
    parser: SseParser,
    attempts: Attempts,
}

impl RecoveryEvents {
    /// Where to resume after the last event that was handed out.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// The next event, waiting for it, over as many connections as it takes. Cancel-safe. Errors:
    /// when the client's patience is over, or the answer is none that is documented.
    pub async fn next(&mut self) -> Result<RecoveryEventDocument> {
        loop {
            match self.step().await {
                Ok(event) => return Ok(event),
                Err(failure) => {
                    self.answer = None;
                    let caller = self.job.caller.clone();
                    caller.pause(&mut self.attempts, failure).await?;
                }
            }
        }
    }

    async fn step(&mut self) -> std::result::Result<RecoveryEventDocument, Failure> {
        if self.answer.is_none() {
            let call = self.job.call(Method::GET, "/recovery-events")?.with("accept", "text/event-stream")?;
            let call = call.maybe_with("last-event-id", self.cursor.as_ref())?;
            self.answer = Some(self.job.caller.once(&call, self.job.caller.shared.stall).await?);
            self.parser = SseParser::default();
            // Without a cursor nobody knows what happened while the connection was away.
            if !std::mem::take(&mut self.is_first) && self.cursor.is_none() {
                let job = self.job.id().to_string();
                let kind = RecoveryEventKind::Reset;
                return Ok(RecoveryEventDocument { kind, job, plan: None, attempt: None, worker: None, dataset: None, partition: None });
            }
        }
        loop {
            if let Some(event) = self.parser.next_event().map_err(|_| ClientError::unexpected("an event of unreasonable size"))? {
                self.attempts.progressed();
                let document = serde_json::from_str(&event.data).map_err(|cause| ClientError::Unexpected {
                    detail: "an event is not of the documented form".to_owned(),
                    source: Some(Box::new(cause)),
                })?;
                self.cursor = event.id.or_else(|| self.cursor.take());
                return Ok(document);
            }
            let Some(answer) = &mut self.answer else { return Err(Failure::cut("the event stream is not connected")) };
            let Some(piece) = answer.body.next().await? else { return Err(Failure::cut("the event stream ended")) };
            self.attempts.progressed();
            self.parser.push(&piece).map_err(|_| ClientError::unexpected("a line of unreasonable size"))?;
        }
    }
}
