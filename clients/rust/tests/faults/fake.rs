//! A server on raw TCP that answers what it is told and breaks where it is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A request; `is_whole` is false when its body was cut on purpose or by the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The whole reply.
    Whole,
    /// The connection closes after this many bytes of the body; 0 sends no head either.
    CutAt(usize),
    /// Silence after this many bytes of the body.
    StallAt(usize),
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Vec<(String, String)>>,
    pub(crate) end: End,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), trailers: None, end: End::Whole }
    }

    pub(crate) fn json(document: &impl serde::Serialize) -> Self {
        Self::new(200, serde_json::to_vec(document).unwrap())
    }

    pub(crate) fn problem(problem: &forebay_protocol::Problem) -> Self {
        Self { status: problem.status, ..Self::json(problem) }.with("content-type", "application/problem+json")
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn ending(mut self, end: End) -> Self {
        self.end = end;
        self
    }
}

pub(crate) trait Service: Send + Sync + 'static {
    /// How many bytes of the request's body are taken before the connection breaks.
    fn upload_limit(&self, _head: &Request) -> Option<usize> {
        None
    }
    fn answer(&self, request: &Request) -> Reply;
}

impl<F: Fn(&Request) -> Reply + Send + Sync + 'static> Service for F {
    fn answer(&self, request: &Request) -> Reply {
        self(request)
    }
}

/// Runs until it is dropped.
pub(crate) struct Fake {
    pub(crate) url: String,
    pub(crate) seen: Arc<Mutex<Vec<Request>>>,
    _tasks: JoinSet<()>,
}

impl Fake {
    pub(crate) async fn start(service: impl Service) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (service, seen) = (Arc::new(service), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = JoinSet::new();
        let log = seen.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).unwrap();
                let (service, log) = (service.clone(), log.clone());
                connections.spawn(async move {
                    let mut socket = BufReader::new(socket);
                    while serve(&mut socket, &*service, &log).await.is_some() {}
                });
            }
        });
        Self { url, seen, _tasks: tasks }
    }

    pub(crate) fn n_seen(&self, method: &str, end: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|request| request.method == method && request.path.ends_with(end)).count()
    }
}

async fn read_line(socket: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let byte = socket.read_u8().await.ok()?;
        if byte == b'\n' {
            return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        line.push(byte);
    }
}

async fn read_body(socket: &mut BufReader<TcpStream>, request: &mut Request, limit: usize) -> Option<()> {
    if let Some(length) = request.headers.get("content-length") {
        let length: usize = length.parse().ok()?;
        let mut body = vec![0; length.min(limit)];
        socket.read_exact(&mut body).await.ok()?;
        request.body = body;
        return (length <= limit).then_some(());
    }
    if !request.headers.contains_key("transfer-encoding") {
        return Some(());
    }
    loop {
        let line = read_line(socket).await?;
        let n = usize::from_str_radix(&line, 16).ok()?;
        let mut piece = vec![0; n];
        let room = limit.saturating_sub(request.body.len());
        socket.read_exact(&mut piece).await.ok()?;
        request.body.extend_from_slice(&piece[..n.min(room)]);
        if n > room {
            return None;
        }
        let mut end = [0; 2];
        socket.read_exact(&mut end).await.ok()?;
        if n == 0 {
            return Some(());
        }
    }
}

async fn serve(socket: &mut BufReader<TcpStream>, service: &impl Service, log: &Mutex<Vec<Request>>) -> Option<()> {
    let first = read_line(socket).await?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut request = Request { method, path: path.to_owned(), query, ..Request::default() };
    loop {
        let line = read_line(socket).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let limit = service.upload_limit(&request).unwrap_or(usize::MAX);
    request.is_whole = read_body(socket, &mut request, limit).await.is_some();
    log.lock().unwrap().push(request.clone());
    let reply = service.answer(&request);
    if !request.is_whole {
        return None;
    }
    send(socket, reply).await
}

async fn send(socket: &mut BufReader<TcpStream>, reply: Reply) -> Option<()> {
    if reply.end == End::CutAt(0) {
        return None;
    }
    let mut head = format!("HTTP/1.1 {} X\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let has_length = reply.headers.iter().any(|(name, _)| name == "content-length");
    match &reply.trailers {
        Some(trailers) => {
            let names: Vec<_> = trailers.iter().map(|(name, _)| name.as_str()).collect();
            head.push_str(&format!("transfer-encoding: chunked\r\ntrailer: {}\r\n", names.join(", ")));
        }
        None if !has_length => head.push_str(&format!("content-length: {}\r\n", reply.body.len())),
        None => {}
    }
    head.push_str("\r\n");
    socket.write_all(head.as_bytes()).await.ok()?;
    let n_sent = match reply.end {
        End::Whole => reply.body.len(),
        End::CutAt(at) | End::StallAt(at) => at.min(reply.body.len()),
    };
    let body = &reply.body[..n_sent];
    if reply.trailers.is_some() && !body.is_empty() {
        socket.write_all(format!("{:x}\r\n", body.len()).as_bytes()).await.ok()?;
        socket.write_all(body).await.ok()?;
        socket.write_all(b"\r\n").await.ok()?;
    } else {
        socket.write_all(body).await.ok()?;
    }
    socket.flush().await.ok()?;
    match reply.end {
        End::CutAt(_) => return None,
        End::StallAt(_) => std::future::pending().await,
        End::Whole => {}
    }
    if let Some(trailers) = reply.trailers {
        let lines: String = trailers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        socket.write_all(format!("0\r\n{lines}\r\n").as_bytes()).await.ok()?;
        socket.flush().await.ok()?;
    }
    Some(())
}
