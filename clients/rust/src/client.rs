//! The client and its builder.

use crate::error::{ClientError, Result};
use crate::job::JobHandle;
use crate::retry::RetryPolicy;
use crate::transport::{Call, SharedTransport, Transport};
use forebay_protocol::jobs::{JobDocument, JobList, JobRequest};
use forebay_protocol::node::NodeDocument;
use forebay_protocol::paths;
use http::{HeaderValue, Method};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use store_api::{JobEpoch, JobId, SharedClock, SystemClock, TaskGroup};

/// Longest time to a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time without a byte of progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(90);

/// Builds a [`Client`].
#[derive(Debug)]
pub struct ClientBuilder {
    urls: Vec<String>,
    token: Option<String>,
    ca_pem: Option<Vec<u8>>,
    connect_timeout: Duration,
    stall_timeout: Duration,
    retry: RetryPolicy,
    is_http2: bool,
    clock: SharedClock,
}

impl ClientBuilder {
    /// Another node to ask when the ones before it do not answer.
    #[must_use]
    pub fn also(mut self, url: &str) -> Self {
        self.urls.push(url.to_owned());
        self
    }

    /// The bearer token: a job's, or the admin's.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// A certificate authority to trust besides the system's, in PEM.
    #[must_use]
    pub fn ca_pem(mut self, pem: &[u8]) -> Self {
        self.ca_pem = Some(pem.to_vec());
        self
    }

    /// Longest time to a connection; 5 s by default.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Longest time without a byte of progress; 90 s by default. There is no limit to a whole
    /// transfer: a slow one that moves is a good one.
    #[must_use]
    pub const fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// When and how often to try again.
    #[must_use]
    pub const fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Speaks HTTP/2 with prior knowledge on plain connections (TLS negotiates by itself).
    #[must_use]
    pub const fn http2(mut self) -> Self {
        self.is_http2 = true;
        self
    }

    /// Takes time from another clock.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the client; connects to nothing yet. Errors: `Invalid` for a URL, token or certificate
    /// that makes no sense.
    pub fn build(self) -> Result<Client> {
        for url in &self.urls {
            if !url.starts_with("http://") && !url.starts_with("https://") {
                return Err(ClientError::Invalid(format!("{url} is no http or https URL")));
            }
        }
        // Fails only when a provider is there already, and then that one serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.stall_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .no_proxy();
        if self.is_http2 {
            http = http.http2_prior_knowledge().http2_adaptive_window(true);
        }
        if let Some(pem) = &self.ca_pem {
            let certificate = reqwest::Certificate::from_pem(pem).map_err(|error| ClientError::Invalid(error.to_string()))?;
            http = http.add_root_certificate(certificate);
        }
        let token = self.token.map(|token| HeaderValue::from_str(&format!("Bearer {token}"))).transpose();
        let mut token = token.map_err(|_| ClientError::Invalid("the token is no header value".to_owned()))?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        Ok(Client {
            transport: Arc::new(Transport {
                http: http.build().map_err(|error| ClientError::Invalid(error.to_string()))?,
                urls: self.urls,
                preferred: AtomicUsize::new(0),
                token,
                retry: self.retry,
                stall: self.stall_timeout,
                clock: self.clock,
                tasks: TaskGroup::new(),
            }),
        })
    }
}

/// Speaks to a Forebay node. Cloning gives another handle to the same connections.
#[derive(Debug, Clone)]
pub struct Client {
    transport: SharedTransport,
}

impl Client {
    /// A client of the node at `url`, with defaults for the rest.
    #[must_use]
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            urls: vec![url.to_owned()],
            token: None,
            ca_pem: None,
            connect_timeout: CONNECT_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            retry: RetryPolicy::default(),
            is_http2: false,
            clock: SystemClock::shared(),
        }
    }

    /// The node that answers.
    pub async fn node(&self) -> Result<NodeDocument> {
        self.transport.document(&Call::new(Method::GET, paths::NODE.to_owned())).await
    }

    /// All jobs of the node (admin).
    pub async fn jobs(&self) -> Result<JobList> {
        self.transport.document(&Call::new(Method::GET, paths::JOBS.to_owned())).await
    }

    /// Creates a job or takes it over. Idempotent by `owner_nonce`. The handle carries the epoch;
    /// when tokens are on, make a client with the job's token from the document.
    pub async fn put_job(&self, job: &JobId, request: &JobRequest) -> Result<(JobHandle, JobDocument)> {
        let document: JobDocument = self.transport.document(&Call::new(Method::PUT, paths::job(job)).json(request)?).await?;
        let handle = JobHandle::new(self.transport.clone(), job.clone(), Some(JobEpoch::new(document.epoch)));
        Ok((handle, document))
    }

    /// A handle to a job that exists, without ownership: it can read and write, not release.
    #[must_use]
    pub fn job(&self, job: &JobId) -> JobHandle {
        JobHandle::new(self.transport.clone(), job.clone(), None)
    }

    /// A handle to a job under an epoch that the caller knows.
    #[must_use]
    pub fn job_at(&self, job: &JobId, epoch: JobEpoch) -> JobHandle {
        JobHandle::new(self.transport.clone(), job.clone(), Some(epoch))
    }
}
