//! The client and its builder.

use crate::error::{ClientError, Result};
use crate::job::JobHandle;
use crate::retry::{Jitter, RetryPolicy};
use crate::transport::{Caller, Shared};
use forebay_protocol::jobs::{JobDocument, JobList, JobRequest};
use forebay_protocol::node::NodeDocument;
use forebay_protocol::paths;
use http::{HeaderValue, Method};
use rand::TryRng as _;
use reqwest::{Certificate, Url, redirect};
use std::sync::Arc;
use std::time::Duration;
use store_api::{JobEpoch, JobId, SharedClock, SystemClock};

/// Options of a [`Client`].
#[derive(Debug)]
pub struct ClientBuilder {
    url: String,
    token: Option<String>,
    ca_pem: Option<Vec<u8>>,
    connect_timeout: Duration,
    stall_timeout: Duration,
    retry: RetryPolicy,
    is_http2_only: bool,
    clock: SharedClock,
    seed: Option<u64>,
}

impl ClientBuilder {
    /// A token for every call: the operator's, or that of one job.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Trusts only the authorities of these PEM certificates, instead of the platform's.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Longest time to connect; 10 s unless set.
    #[must_use]
    pub const fn connect_timeout(mut self, patience: Duration) -> Self {
        self.connect_timeout = patience;
        self
    }

    /// Longest time without progress: to the head of an answer, between two pieces of a body. There
    /// is no limit for a whole transfer. 60 s unless set.
    #[must_use]
    pub const fn stall_timeout(mut self, patience: Duration) -> Self {
        self.stall_timeout = patience;
        self
    }

    /// How long the client goes on by itself.
    #[must_use]
    pub const fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Speaks HTTP/2 without asking first. Without it plain connections speak HTTP/1.1, and TLS
    /// connections what both sides like best.
    #[must_use]
    pub const fn http2(mut self, only: bool) -> Self {
        self.is_http2_only = only;
        self
    }

    /// Another source of time, for tests.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Seed of the jitter between retries; drawn at random unless set.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the client; connects to nothing. Errors: [`ClientError::Invalid`] for a URL, token or
    /// certificate that cannot be used.
    pub fn build(self) -> Result<Client> {
        // Another part of the program may have installed a provider before: that one is kept.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let base = Url::parse(&self.url).map_err(|cause| ClientError::invalid_because("the URL", cause))?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(ClientError::invalid("the URL is neither http nor https"));
        }
        let mut http =
            reqwest::Client::builder().redirect(redirect::Policy::none()).connect_timeout(self.connect_timeout).tcp_nodelay(true);
        if self.is_http2_only {
            http = http.http2_prior_knowledge();
        }
        if let Some(pem) = &self.ca_pem {
            let authorities = Certificate::from_pem_bundle(pem).map_err(|cause| ClientError::invalid_because("the certificates", cause))?;
            http = http.tls_certs_only(authorities);
        }
        let http = http.build().map_err(|cause| ClientError::invalid_because("the TLS or connection options", cause))?;
        let seed = match self.seed {
            Some(seed) => seed,
            None => rand::rngs::SysRng.try_next_u64().map_err(|cause| ClientError::invalid_because("the system's randomness", cause))?,
        };
        let shared = Shared { http, policy: self.retry, stall: self.stall_timeout, clock: self.clock, jitter: Jitter::new(seed) };
        let token = self.token.as_deref().map(bearer).transpose()?;
        Ok(Client { caller: Caller { shared: Arc::new(shared), base, token } })
    }
}

/// The header of a token, kept out of debug output.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue> {
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|cause| ClientError::invalid_because("the token", cause))?;
    header.set_sensitive(true);
    Ok(header)
}

/// A Forebay node, and through it the nodes that it names. Cloning is cheap and shares connections.
#[derive(Debug, Clone)]
pub struct Client {
    caller: Caller,
}

impl Client {
    /// Options for the node at `url`.
    ///
    /// ```
    /// use forebay_client::{Client, RetryPolicy};
    /// use std::time::Duration;
    /// let client = Client::builder("http://127.0.0.1:7440")
    ///     .token("0123456789abcdef")
    ///     .stall_timeout(Duration::from_secs(20))
    ///     .retry(RetryPolicy::never())
    ///     .build();
    /// assert!(client.is_ok());
    /// ```
    #[must_use]
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            url: url.into(),
            token: None,
            ca_pem: None,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            retry: RetryPolicy::default(),
            is_http2_only: false,
            clock: SystemClock::shared(),
            seed: None,
        }
    }

    pub(crate) const fn caller(&self) -> &Caller {
        &self.caller
    }

    /// This node: its life, its classes, its budgets.
    pub async fn node(&self) -> Result<NodeDocument> {
        Ok(self.caller.document(&self.caller.call(Method::GET, paths::NODE)?).await?.0)
    }

    /// All jobs that the node knows; needs the operator's token.
    pub async fn jobs(&self) -> Result<JobList> {
        Ok(self.caller.document(&self.caller.call(Method::GET, paths::JOBS)?).await?.0)
    }

    /// Asks the node to stop admitting, finish what it has and end. Idempotent. Needs the
    /// operator's token.
    pub async fn drain(&self) -> Result<NodeDocument> {
        Ok(self.caller.document(&self.caller.call(Method::POST, paths::DRAIN)?).await?.0)
    }

    /// Creates a job or takes it over. Idempotent by `owner_nonce`. When the service answers with a
    /// token for the job, or the request chose one, the handle uses it from here on. Errors:
    /// [`ClientError::Refused`] with `job_owned` when another owner has it.
    ///
    /// ```no_run
    /// # use forebay_client::{Client, JobRequest};
    /// # async fn example(client: Client) -> forebay_client::Result<()> {
    /// let job = client.put_job("query-17", JobRequest { owner_nonce: "driver-1".into(), ..JobRequest::default() }).await?;
    /// println!("epoch {:?}", job.epoch());
    /// # Ok(()) }
    /// ```
    pub async fn put_job(&self, job: &str, request: JobRequest) -> Result<JobHandle> {
        let id = parse_job(job)?;
        let call = self.caller.call(Method::PUT, &paths::job(&id))?.json(&request)?;
        let (document, _) = self.caller.document::<JobDocument>(&call).await?;
        let token = document.token.clone().or(request.token_secret);
        let mut caller = self.caller.clone();
        if let Some(token) = &token {
            caller.token = Some(bearer(token)?);
        }
        Ok(JobHandle::new(caller, id, Some(JobEpoch::new(document.epoch)), token, Some(document.lease_ms)))
    }

    /// A job that exists, for writers and readers: without an epoch it cannot renew, release or
    /// raise a generation. Makes no call. Errors: [`ClientError::Invalid`] for an id that is none.
    pub fn job(&self, job: &str) -> Result<JobHandle> {
        Ok(JobHandle::new(self.caller.clone(), parse_job(job)?, None, None, None))
    }
}

fn parse_job(job: &str) -> Result<JobId> {
    JobId::new(job).map_err(|cause| ClientError::invalid_because("the job id", cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_refused_before_a_call() {
        for url in ["", "ftp://x", "127.0.0.1:7440", "data:x"] {
            assert!(matches!(Client::builder(url).build(), Err(ClientError::Invalid { .. })), "{url:?} was taken");
        }
        assert!(Client::builder("http://x").token("a\nb").build().is_err());
        let client = Client::builder("https://x").build().unwrap();
        assert!(client.job("../x").is_err());
    }

    #[test]
    fn a_token_is_never_sent_to_an_unencrypted_node_named_by_an_encrypted_one() {
        let client = Client::builder("https://x").token("secret").build().unwrap();
        assert!(client.caller.at("http://y").is_err());
        assert!(client.caller.at("https://y").is_ok());
    }

    #[test]
    fn a_token_is_not_in_debug_output() {
        let client = Client::builder("https://x").token("open-sesame").build().unwrap();
        assert!(!format!("{client:?}").contains("open-sesame"));
    }
}
