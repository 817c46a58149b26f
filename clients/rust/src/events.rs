//! Follows what happens to a job, over as many connections as it takes.

use crate::error::{ClientError, Result};
use crate::job::JobHandle;
use crate::retry::Attempts;
use crate::sse::SseParser;
use crate::transport::{Answer, Failure};
use forebay_protocol::events::{EventDocument, EventKind};
use futures::stream::{BoxStream, StreamExt as _};
use http::Method;

/// What a job's stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// Something happened.
    Happened {
        /// Where to resume after this event.
        cursor: String,
        /// What it was.
        document: EventDocument,
    },
    /// Events may have been missed: ask for the availability, then follow on.
    Reset {
        /// Where to resume, if the service said it.
        cursor: Option<String>,
    },
}

impl JobHandle {
    /// Follows what happens to the job, from now on or after a cursor of an earlier event.
    #[must_use]
    pub fn events(&self, after: Option<String>) -> JobEvents {
        JobEvents::new(self.clone(), after)
    }
}

/// The events of a job. Never ends by itself; an error ends it.
///
/// ```no_run
/// # async fn example(job: forebay_client::JobHandle) -> forebay_client::Result<()> {
/// let mut events = job.events(None);
/// while let Some(event) = events.next().await {
///     println!("{:?}", event?);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct JobEvents {
    job: JobHandle,
    cursor: Option<String>,
    is_first: bool,
    owes_reset: bool,
    answer: Option<Answer>,
    parser: SseParser,
    attempts: Attempts,
    is_ended: bool,
}

impl JobEvents {
    pub(crate) fn new(job: JobHandle, cursor: Option<String>) -> Self {
        let attempts = job.caller.attempts();
        Self { job, cursor, is_first: true, owes_reset: false, answer: None, parser: SseParser::default(), attempts, is_ended: false }
    }

    /// Where to resume after the last event that was handed out.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// The next event, waiting for it. Cancel-safe. After an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<JobEvent>> {
        while !self.is_ended {
            let failure = match self.step().await {
                Ok(event) => return Some(Ok(event)),
                Err(failure) => failure,
            };
            self.answer = None;
            let caller = self.job.caller.clone();
            if let Err(error) = caller.pause(&mut self.attempts, failure).await {
                self.is_ended = true;
                return Some(Err(error));
            }
        }
        None
    }

    async fn step(&mut self) -> std::result::Result<JobEvent, Failure> {
        if self.answer.is_none() {
            self.connect().await?;
        }
        if std::mem::take(&mut self.owes_reset) {
            return Ok(JobEvent::Reset { cursor: None });
        }
        loop {
            if let Some(event) = self.parser.next_event().map_err(|_| ClientError::unexpected("an event of unreasonable size"))? {
                self.attempts.progressed();
                return Ok(self.event(event.id, &event.data)?);
            }
            let Some(answer) = &mut self.answer else { return Err(Failure::cut("the event stream is not connected")) };
            let Some(piece) = answer.body.next().await? else { return Err(Failure::cut("the event stream ended")) };
            self.attempts.progressed();
            self.parser.push(&piece).map_err(|_| ClientError::unexpected("a line of unreasonable size"))?;
        }
    }

    async fn connect(&mut self) -> std::result::Result<(), Failure> {
        let call = self.job.call(Method::GET, "/events")?.with("accept", "text/event-stream")?;
        let call = call.maybe_with("last-event-id", self.cursor.as_ref())?;
        let answer = self.job.caller.once(&call, self.job.caller.shared.stall).await?;
        // Without a cursor nobody knows what happened while the connection was away.
        self.owes_reset = !self.is_first && self.cursor.is_none();
        self.is_first = false;
        self.parser = SseParser::default();
        self.answer = Some(answer);
        Ok(())
    }

    fn event(&mut self, id: Option<String>, text: &str) -> Result<JobEvent> {
        let document: EventDocument = serde_json::from_str(text).map_err(|cause| ClientError::Unexpected {
            detail: "an event is not of the documented form".to_owned(),
            source: Some(Box::new(cause)),
        })?;
        if document.kind == EventKind::Reset {
            self.cursor.clone_from(&id);
            return Ok(JobEvent::Reset { cursor: id });
        }
        let cursor = id.ok_or_else(|| ClientError::unexpected("an event without a cursor"))?;
        self.cursor = Some(cursor.clone());
        Ok(JobEvent::Happened { cursor, document })
    }

    /// The events as a stream, which ends after the first error.
    #[must_use]
    pub fn into_stream(self) -> BoxStream<'static, Result<JobEvent>> {
        futures::stream::unfold(self, |mut events| async move { events.next().await.map(|event| (event, events)) }).boxed()
    }
}
