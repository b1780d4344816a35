//! A process that plays many pods: each connects from its own address over TLS, and sends registrations.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jsonwebtoken::get_current_timestamp;
use rouse_e2e::runtime::block_on;
use rouse_net::auth::{KeyScope, SharedKey};
use rouse_net::tls::{Alpn, ClientSettings, ClientTls, Pem, Roots, ServerName};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Set in the environment of such a process.
pub(crate) const ROLE: &str = "ROUSE_STORM_CLIENT";
pub(crate) const SERVER_NAME: &str = "rouse-register.rouse-system.svc";
pub(crate) const SECRET: &str = "a-secret-of-the-storm-with-32-bytes";
pub(crate) const KEY: &str = "k1";
const PATIENCE: Duration = Duration::from_mins(2);

/// What one process does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) gateway: SocketAddr,
    pub(crate) ca: String,
    /// How many pods connect at a time.
    pub(crate) at_once: usize,
    pub(crate) pods: Vec<Pod>,
}

/// The registrations of one pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) from: IpAddr,
    /// `None`: signed with the shared key.
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
    /// How often it is sent, on one connection.
    pub(crate) times: usize,
    /// Its connections may be closed without an answer, which counts as status 0.
    pub(crate) attacks: bool,
}

/// What the gateway answered.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answers {
    pub(crate) statuses: BTreeMap<u16, usize>,
    pub(crate) errors: Vec<String>,
}

/// Starts a process for each piece of work, and sums up the answers.
pub(crate) async fn run(work: Vec<Work>) -> Answers {
    let mut processes = JoinSet::new();
    for work in work {
        processes.spawn(async move {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            let mut child = command.spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(&serde_json::to_vec(&work).unwrap()).await.unwrap();
            drop(stdin);
            let output = child.wait_with_output().await.unwrap();
            serde_json::from_slice::<Answers>(&output.stdout).expect("a client ended without a result")
        });
    }
    let mut all = Answers::default();
    while let Some(answers) = processes.join_next().await {
        let answers = answers.unwrap();
        for (status, count) in answers.statuses {
            *all.statuses.entry(status).or_default() += count;
        }
        all.errors.extend(answers.errors);
    }
    all
}

/// Does the work that is on standard input.
pub(crate) fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let work = async {
        let answers = register(serde_json::from_str(&text).unwrap()).await;
        println!("{}", serde_json::to_string(&answers).unwrap());
    };
    block_on(work).unwrap();
}

async fn register(work: Work) -> Answers {
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    let roots = Roots::Pem(vec![Pem::Bytes(work.ca.into_bytes().into())]);
    let settings = ClientSettings { alpn: vec![Alpn::Http1], ..ClientSettings::new(name, roots) };
    let (tls, _) = ClientTls::new(settings).unwrap();
    let (tls, places) = (Arc::new(tls), Arc::new(Semaphore::new(work.at_once)));
    let mut pods = JoinSet::new();
    for pod in work.pods {
        let (tls, places, gateway) = (Arc::clone(&tls), Arc::clone(&places), work.gateway);
        pods.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let mut statuses = BTreeMap::new();
            let mut connection = None;
            while statuses.values().sum::<usize>() < pod.times {
                let sent = timeout(PATIENCE, send(&tls, gateway, &pod, &mut connection)).await;
                let status = match sent.map_err(|_| "no answer".to_owned())? {
                    Err(_) if pod.attacks => {
                        connection = None;
                        0
                    }
                    sent => sent?,
                };
                *statuses.entry(status).or_default() += 1;
            }
            // Sidecars keep their connection: it stays open until all have registered.
            Ok((statuses, connection))
        });
    }
    let (mut answers, mut open) = (Answers::default(), Vec::new());
    while let Some(pod) = pods.join_next().await {
        let result: Result<(BTreeMap<u16, usize>, _), String> = pod.unwrap();
        match result {
            Ok((statuses, connection)) => {
                for (status, count) in statuses {
                    *answers.statuses.entry(status).or_default() += count;
                }
                open.push(connection);
            }
            Err(error) => answers.errors.push(error),
        }
    }
    answers
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Sends one registration, on the open connection if there is one.
async fn send(
    tls: &ClientTls,
    gateway: SocketAddr,
    pod: &Pod,
    connection: &mut Option<Box<dyn Stream>>,
) -> Result<u16, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    if connection.is_none() {
        let socket = TcpSocket::new_v4().map_err(|error| text(&error))?;
        socket.bind(SocketAddr::new(pod.from, 0)).map_err(|error| text(&error))?;
        let stream = socket.connect(gateway).await.map_err(|error| text(&error))?;
        let (stream, _) =
            tls.connect(stream, Instant::now() + PATIENCE).await.map_err(|error| text(&error))?;
        *connection = Some(Box::new(stream));
    }
    let stream = connection.as_mut().unwrap();
    let authorization = pod.authorization.clone().unwrap_or_else(|| signed(pod));
    let request = format!(
        "POST /v1/registrations HTTP/1.1\r\nhost: {SERVER_NAME}\r\nauthorization: {authorization}\r\n\
         content-length: {}\r\n\r\n{}",
        pod.body.len(),
        pod.body
    );
    stream.write_all(request.as_bytes()).await.map_err(|error| text(&error))?;
    stream.flush().await.map_err(|error| text(&error))?;
    let (status, closes) = answer(stream).await?;
    if closes {
        *connection = None;
    }
    Ok(status)
}

/// Reads one response: its status, and whether the connection closes after it.
async fn answer(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> Result<(u16, bool), String> {
    let mut read = Vec::new();
    loop {
        let mut piece = [0; 2048];
        let length = stream.read(&mut piece).await.map_err(|error| error.to_string())?;
        if length == 0 {
            return Err("the connection ended without an answer".to_owned());
        }
        read.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&read).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let expected: usize = field("content-length: ").and_then(|text| text.parse().ok()).unwrap_or(0);
        if body.len() >= expected {
            let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
            return Ok((status.ok_or("no status")?, field("connection: ") == Some("close")));
        }
    }
}

fn signed(pod: &Pod) -> String {
    static SENT: AtomicU64 = AtomicU64::new(0);

    let key = SharedKey::new(KEY, SECRET.as_bytes(), KeyScope::All).unwrap();
    // Unique: each process has its own pid, and counts.
    let (process, sent) = (std::process::id(), SENT.fetch_add(1, Ordering::Relaxed));
    let mut nonce = [0; 16];
    nonce[..4].copy_from_slice(&process.to_be_bytes());
    nonce[4..12].copy_from_slice(&sent.to_be_bytes());
    key.sign("POST", "/v1/registrations", pod.body.as_bytes(), get_current_timestamp(), nonce)
}
