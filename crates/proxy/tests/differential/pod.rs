//! The pod of the differential fuzz: parses requests from the gateway strictly, records them by client, and answers.
//!
//! It identifies a client by the address that the gateway adds: every client connection has an address of its own.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::judge;
use crate::reader::Asked;

/// The number of closed connections that are remembered, because a broken body may be noticed late.
const REMEMBERED: usize = 50_000;

/// A request as the pod got it.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) client: Ipv4Addr,
    pub(crate) method: Vec<u8>,
    pub(crate) target: Vec<u8>,
    pub(crate) headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) whole: bool,
}

/// What pods got, by client.
#[derive(Debug, Default)]
pub(crate) struct Received {
    clients: HashMap<Ipv4Addr, Page>,
    past: VecDeque<Ipv4Addr>,
    /// Faults to report at once: the case, if it is known, and the fault.
    faults: Vec<(Option<u64>, String)>,
}

#[derive(Debug)]
enum Page {
    Open {
        case: u64,
        got: Vec<Got>,
    },
    /// The client has disconnected. The pod may have received a part of its last request.
    Past {
        case: u64,
        part: Option<Asked>,
    },
}

impl Received {
    /// A client begins a case.
    pub(crate) fn begin(&mut self, client: Ipv4Addr, number: u64) {
        match self.clients.get_mut(&client) {
            Some(Page::Open { case, .. }) => *case = number,
            _ => drop(self.clients.insert(client, Page::Open { case: number, got: Vec::new() })),
        }
    }

    /// The requests of a client since the last call.
    pub(crate) fn take(&mut self, client: Ipv4Addr) -> Vec<Got> {
        match self.clients.get_mut(&client) {
            Some(Page::Open { got, .. }) => std::mem::take(got),
            _ => Vec::new(),
        }
    }

    /// Records that a client has disconnected. Returns its requests since the last call.
    pub(crate) fn close(&mut self, client: Ipv4Addr, case: u64, part: Option<Asked>) -> Vec<Got> {
        let got = self.take(client);
        // A partial request arrives at most once.
        let part = part.filter(|_| got.iter().all(|got| got.whole));
        self.clients.insert(client, Page::Past { case, part });
        self.past.push_back(client);
        if self.past.len() > REMEMBERED
            && let Some(oldest) = self.past.pop_front()
        {
            self.clients.remove(&oldest);
        }
        got
    }

    pub(crate) fn fault(&mut self) -> Option<(Option<u64>, String)> {
        self.faults.pop()
    }

    /// The case to which malformed bytes belong, if they contain its number.
    fn case_of(&self, bytes: &[u8]) -> Option<u64> {
        let text = String::from_utf8_lossy(bytes);
        let (_, after) = text.split_once("x-forwarded-for: ")?;
        let client: Ipv4Addr = after.split("\r\n").next()?.parse().ok()?;
        match self.clients.get(&client)? {
            Page::Open { case, .. } | Page::Past { case, .. } => Some(*case),
        }
    }

    fn write(&mut self, got: Got) {
        match self.clients.get_mut(&got.client) {
            Some(Page::Open { got: all, .. }) => all.push(got),
            Some(Page::Past { case, part }) => {
                let part = part.take().filter(|_| !got.whole);
                let judged = part
                    .map_or(Err("nothing was left to come".to_owned()), |part| judge::is_part(&got, &part));
                if let Err(why) = judged {
                    self.faults
                        .push((Some(*case), format!("the pod got this after all was over: {why}\n{got:?}")));
                }
            }
            None => self.faults.push((None, format!("the pod got this without a client: {got:?}"))),
        }
    }
}

/// Starts the pod, which runs until the process ends. Returns its address.
pub(crate) fn start(received: &Arc<Mutex<Received>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (address, received) = (listener.local_addr().unwrap(), Arc::clone(received));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(stream, Arc::clone(&received)));
            }
        });
    });
    address
}

async fn serve(mut stream: TcpStream, received: Arc<Mutex<Received>>) {
    stream.set_nodelay(true).unwrap();
    let (mut bytes, mut asked_on) = (Vec::new(), false);
    loop {
        let got = match request(&bytes) {
            Ok(Some((got, used))) if got.whole => {
                let answer = answer(&got);
                received.lock().unwrap().write(got);
                bytes.drain(..used);
                asked_on = false;
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
                continue;
            }
            Ok(part) => part.map(|(got, _)| got),
            Err(why) => {
                let text = format!("the pod cannot tell what it got: {why}\n{}", bytes.escape_ascii());
                let mut received = received.lock().unwrap();
                let case = received.case_of(&bytes);
                received.faults.push((case, text));
                return;
            }
        };
        if let Some(got) = &got
            && got.headers.iter().any(|(name, _)| name == b"expect")
            && !std::mem::replace(&mut asked_on, true)
        {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok();
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            match got {
                Some(part) => received.lock().unwrap().write(part),
                None if bytes.is_empty() => {}
                None => {
                    let text = format!("the pod got half a head: {}", bytes.escape_ascii());
                    received.lock().unwrap().faults.push((None, text));
                }
            }
            return;
        }
    }
}

/// A response with a digest of the parsed request, so that the client recognises a response to another request.
fn answer(got: &Got) -> Vec<u8> {
    let echo = judge::digest(&got.method, &got.target, &got.body);
    let body = if got.method == b"HEAD" { "" } else { "ok" };
    format!("HTTP/1.1 200 OK\r\nX-Echo: {echo:016x}\r\nContent-Length: 2\r\n\r\n{body}").into_bytes()
}

/// The first request in `bytes`, as far as received, and its length; `None` until its head is complete.
pub(crate) fn request(bytes: &[u8]) -> Result<Option<(Got, usize)>, String> {
    let Some(end) = find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let mut lines = split(&bytes[..end])?.into_iter();
    let first =
        String::from_utf8(lines.next().unwrap_or_default().to_vec()).map_err(|_| "a line beyond UTF-8")?;
    let mut parts = first.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1"), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(format!("request line {first:?}"));
    };
    if method.is_empty() || !method.bytes().all(is_tchar) || !(target.starts_with('/') || target == "*") {
        return Err(format!("request line {first:?}"));
    }
    let headers = lines.map(pair).collect::<Result<Vec<_>, _>>()?;
    let only = |wanted: &str| {
        let mut values = headers.iter().filter(|(name, _)| name == wanted.as_bytes()).map(|(_, value)| value);
        let value = values.next();
        if values.next().is_some() { Err(format!("{wanted} twice")) } else { Ok(value) }
    };
    only("host")?.filter(|host| !host.is_empty()).ok_or("no Host")?;
    let client = only("x-forwarded-for")?.and_then(|ip| String::from_utf8_lossy(ip).parse().ok());
    let (length, coding) = (only("content-length")?, only("transfer-encoding")?);
    let mut got = Got {
        client: client.ok_or("no X-Forwarded-For of one address")?,
        method: method.into(),
        target: target.into(),
        body: Vec::new(),
        trailers: Vec::new(),
        whole: true,
        headers: Vec::new(),
    };
    let after = &bytes[end + 4..];
    let used = match (length, coding) {
        (Some(_), Some(_)) => return Err("both lengths".into()),
        (None, None) => 0,
        (Some(length), None) => {
            let digits = String::from_utf8_lossy(length);
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(format!("length {digits:?}"));
            }
            let length: usize = digits.parse().map_err(|_| format!("length {digits:?}"))?;
            got.body = after[..length.min(after.len())].to_vec();
            got.whole = after.len() >= length;
            length
        }
        (None, Some(coding)) if coding == b"chunked" => {
            let used = chunks(after, &mut got)?;
            got.whole = used.is_some();
            used.unwrap_or(0)
        }
        (None, Some(coding)) => return Err(format!("coding {}", coding.escape_ascii())),
    };
    got.headers = headers;
    Ok(Some((got, end + 4 + used)))
}

/// The length of a chunked body, once it is complete.
fn chunks(bytes: &[u8], got: &mut Got) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(end) = find(&bytes[at..], b"\n") else { return Ok(None) };
        let line = bytes[at..at + end].strip_suffix(b"\r").ok_or("a bare LF")?;
        let digits = String::from_utf8_lossy(line);
        // The gateway writes its own chunks, without extensions.
        if line.is_empty() || line.len() > 15 || !line.iter().all(u8::is_ascii_hexdigit) {
            return Err(format!("chunk line {digits:?}"));
        }
        let size = usize::from_str_radix(&digits, 16).map_err(|error| error.to_string())?;
        at += end + 1;
        if size == 0 {
            break;
        }
        let data = &bytes[at..bytes.len().min(at + size)];
        got.body.extend_from_slice(data);
        match bytes.get(at + size..).unwrap_or_default() {
            [b'\r', b'\n', ..] => at += size + 2,
            [] | [b'\r'] => return Ok(None),
            _ => return Err("a chunk without its end".into()),
        }
    }
    if bytes[at..].starts_with(b"\r\n") {
        return Ok(Some(at + 2));
    }
    let Some(end) = find(&bytes[at..], b"\r\n\r\n") else { return Ok(None) };
    got.trailers = split(&bytes[at..at + end])?.into_iter().map(pair).collect::<Result<_, _>>()?;
    let of_the_head = |name: &[u8]| matches!(name, b"host" | b"content-length" | b"transfer-encoding");
    if got.trailers.iter().any(|(name, _)| of_the_head(name)) {
        return Err("a trailer of the head".into());
    }
    Ok(Some(at + end + 4))
}

/// The lines of a head, none of which has a line end within.
fn split(mut head: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut lines = Vec::new();
    while let Some(end) = find(head, b"\r\n") {
        lines.push(&head[..end]);
        head = &head[end + 2..];
    }
    lines.push(head);
    let unclear = |line: &&[u8]| line.is_empty() || line.contains(&b'\r') || line.contains(&b'\n');
    if lines.iter().any(unclear) { Err("a bare CR or LF, or an empty line".into()) } else { Ok(lines) }
}

fn pair(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let colon = find(line, b":").ok_or_else(|| format!("no colon in {}", line.escape_ascii()))?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let visible = |byte: &u8| *byte >= b' ' && *byte != 0x7f || *byte == b'\t';
    if name.is_empty() || !name.iter().copied().all(is_tchar) || !value.iter().all(visible) {
        return Err(format!("header {}", line.escape_ascii()));
    }
    Ok((name.to_ascii_lowercase(), value.to_vec()))
}

fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
