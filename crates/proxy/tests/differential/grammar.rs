//! Generates valid requests: every form that the gateway must serve, and some that it answers itself.

use crate::random::CaseRandom;

/// One request, in parts that can be mutated separately. Lines are without CRLF.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) before: Vec<u8>,
    pub(crate) line: Vec<u8>,
    pub(crate) headers: Vec<Vec<u8>>,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    None,
    Sized(Vec<u8>),
    Chunked { chunks: Vec<Chunk>, last: Vec<u8>, trailers: Vec<Vec<u8>>, end: Vec<u8> },
}

#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) line: Vec<u8>,
    pub(crate) data: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

const METHODS: [&str; 10] =
    ["GET", "GET", "POST", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "PURGE-it"];
const PATHS: [&str; 8] =
    ["", "/", "//x", "?a=b", "?q=%0d%0aX-Injected:%201", "/a;b,c=d", "/%2e%2e/", "/a?b?c/d"];
const HEADERS: [&str; 22] = [
    "Accept: */*",
    "X-A: b",
    "x-a: c",
    "X-Empty:",
    "X-Tab:\tvalue\twith tabs\t ",
    "X-Quoted: \"GET /smuggled HTTP/1.1\"",
    "X-High: gr\u{f6}\u{df}er",
    "X-Colon: a: b: c",
    "Cookie: a=b; c=d",
    "Via: 1.0 fred",
    "TE: trailers, gzip",
    "Trailer: X-T",
    "Keep-Alive: timeout=5",
    "X-Rouse-Smuggled: 1",
    "X-Forwarded-For: 203.0.113.9",
    "X-Forwarded-Host: smuggled.test",
    "Forwarded: for=203.0.113.9",
    "Proxy-Connection: close",
    "Content-Type: text/plain",
    "Upgrade: websocket",
    "X-Transfer-Encoding: chunked",
    "X-Content-Length: 3",
];
const CONNECTIONS: [&str; 8] = [
    "keep-alive",
    "Keep-Alive, X-A",
    "close",
    "x-nothing, CLOSE",
    "Upgrade",
    "content-length, transfer-encoding",
    ", ,host,via,",
    "x-forwarded-for, x-forwarded-host",
];
const EXTENSIONS: [&str; 5] = ["", "", ";a", ";a=b", ";a=\"b;c\" ; d"];

impl Message {
    /// Request `index` of case `case`.
    pub(crate) fn new(case: u64, index: usize, random: &mut CaseRandom) -> Self {
        let method = random.pick(&METHODS);
        let path = format!("/c{case}/{index}{}", random.pick(&PATHS));
        let target = match random.below(20) {
            0 => format!("http://cart.test{path}"),
            1 => format!("HTTPS://Cart.Test:8080{path}"),
            2 if method == "OPTIONS" => "*".to_owned(),
            _ => path,
        };
        let host = match target.strip_prefix("HTTPS://") {
            Some(_) => "cart.test:8080",
            None if target.starts_with("http:") => "cart.test",
            None => random.pick(&[
                "cart.test",
                "cart.test",
                "cart.test",
                "cart.test",
                "cart.test",
                "cart.test:80",
                "CART.test",
                "other.test",
                "[::1]:80",
            ]),
        };
        let old = random.percent(6);
        let line = format!("{method} {target} HTTP/1.{}", u8::from(!old));
        let mut headers = vec![format!("Host: {host}").into_bytes()];
        for _ in 0..random.below(4) {
            headers.push(latin(random.pick(&HEADERS)));
        }
        if random.percent(if old { 60 } else { 15 }) {
            headers.push(format!("Connection: {}", random.pick(&CONNECTIONS)).into_bytes());
        }
        if random.percent(2) {
            headers.push(b"Connection: upgrade".to_vec());
            headers.push(
                format!("Upgrade: {}", random.pick(&["websocket", "h2c", "rot13", "h2c, x"])).into_bytes(),
            );
        }
        let body = Body::new(case, index, method != "GET" && method != "HEAD", old, random);
        if let Some(header) = body.header() {
            headers.push(header);
            if random.percent(6) {
                headers.push(b"Expect: 100-continue".to_vec());
            }
        }
        // Nothing depends on the order of the headers.
        let (one, other) = (random.below(headers.len()), random.below(headers.len()));
        headers.swap(one, other);
        let before = if random.percent(2) { b"\r\n".to_vec() } else { Vec::new() };
        Self { before, line: line.into_bytes(), headers, body }
    }

    /// Makes the body chunked, if it is not: the same body, or a short one.
    pub(crate) fn in_chunks(&mut self) {
        let data = match &mut self.body {
            Body::Chunked { .. } => return,
            Body::Sized(bytes) if !bytes.is_empty() => std::mem::take(bytes),
            _ => b"hello".to_vec(),
        };
        self.headers.retain(|line| !line.starts_with(b"Content-Length:"));
        self.headers.push(b"Transfer-Encoding: chunked".to_vec());
        let chunk = Chunk { line: format!("{:x}", data.len()).into_bytes(), data, end: b"\r\n".to_vec() };
        self.body = Body::Chunked {
            chunks: vec![chunk],
            last: b"0".to_vec(),
            trailers: Vec::new(),
            end: b"\r\n".to_vec(),
        };
    }

    /// Makes one part of the head longer than allowed.
    pub(crate) fn too_much(&mut self, random: &mut CaseRandom) {
        let long = |length: usize| "a".repeat(length);
        let (some, few) = (random.below(400), random.below(60));
        match random.below(9) {
            0 => self.headers.resize(101 + random.below(20), b"X-Many: 1".to_vec()),
            1 => self.headers.push(format!("X-Long: {}", long(65_000 + some * 10)).into_bytes()),
            2 => self.headers.push(format!("{}: 1", long(65_000 + some * 10)).into_bytes()),
            3 => self.headers.push(long(65_000 + some * 10).into_bytes()),
            4 => self.headers.resize(90, format!("X-Long: {}", long(700 + some)).into_bytes()),
            5 => self.line = format!("GET /{} HTTP/1.1", long(16_200 + some)).into_bytes(),
            // A target that is short, for all that the line is long.
            6 => {
                self.line = format!("{} http://cart.test/smuggled HTTP/1.1", long(16_330 + few)).into_bytes();
            }
            7 => self.line = format!("GET /smuggled HTTP/1.1{}", long(16_200 + some)).into_bytes(),
            _ => self.line = format!("GET http://cart.test/ HTTP/1.1 {}", long(16_200 + some)).into_bytes(),
        }
    }

    pub(crate) fn render(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.before);
        for line in [&self.line].into_iter().chain(&self.headers) {
            into.extend_from_slice(line);
            into.extend_from_slice(b"\r\n");
        }
        into.extend_from_slice(b"\r\n");
        match &self.body {
            Body::None => {}
            Body::Sized(bytes) => into.extend_from_slice(bytes),
            Body::Chunked { chunks, last, trailers, end } => {
                for Chunk { line, data, end } in chunks {
                    for part in [&line[..], b"\r\n", data, end] {
                        into.extend_from_slice(part);
                    }
                }
                for line in [last].into_iter().chain(trailers) {
                    into.extend_from_slice(line);
                    into.extend_from_slice(b"\r\n");
                }
                into.extend_from_slice(end);
            }
        }
    }
}

impl Body {
    fn new(case: u64, index: usize, likely: bool, old: bool, random: &mut CaseRandom) -> Self {
        match random.below(if likely { 6 } else { 20 }) {
            0 => Self::Sized(Vec::new()),
            1 | 2 => Self::Sized(text(case, index, random)),
            3 | 4 if !old => {
                let chunks = (0..random.below(4)).map(|_| Chunk::new(case, index, random)).collect();
                let last = format!("{}{}", random.pick(&["0", "0", "000"]), random.pick(&EXTENSIONS));
                let trailers = (0..random.below(8).saturating_sub(5))
                    .map(|_| random.pick(&["X-T: 1", "X-Rouse-T: 1", "x-t:"]).as_bytes().to_vec())
                    .collect();
                Self::Chunked { chunks, last: last.into_bytes(), trailers, end: b"\r\n".to_vec() }
            }
            _ => Self::None,
        }
    }

    fn header(&self) -> Option<Vec<u8>> {
        match self {
            Self::None => None,
            Self::Sized(bytes) => Some(format!("Content-Length: {}", bytes.len()).into_bytes()),
            Self::Chunked { .. } => Some(b"Transfer-Encoding: chunked".to_vec()),
        }
    }
}

impl Chunk {
    fn new(case: u64, index: usize, random: &mut CaseRandom) -> Self {
        let data = text(case, index, random);
        let size = match random.below(4) {
            0 => format!("{:X}", data.len()),
            1 => format!("{:05x}", data.len()),
            _ => format!("{:x}", data.len()),
        };
        let line = format!("{size}{}", random.pick(&EXTENSIONS)).into_bytes();
        Self { line, data, end: b"\r\n".to_vec() }
    }
}

/// A unique body that looks like other parts of a request.
fn text(case: u64, index: usize, random: &mut CaseRandom) -> Vec<u8> {
    let mut text = format!("[{case}.{index}.{}]", random.below(1000)).into_bytes();
    match random.below(5) {
        0 => text.extend(b"\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: cart.test\r\nX-Smuggled: 1\r\n\r\n"),
        1 => text
            .extend(b"\r\n0\r\n\r\nPOST /smuggled HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 90\r\n\r\n"),
        2 => text.extend((0..random.below(40)).map(|_| random.byte())),
        3 => text.resize(random.below(100), b'x'),
        4 if random.percent(5) => text.resize(random.below(20_000), b'y'),
        _ => {}
    }
    // Nothing may be empty: an empty chunk would be the last.
    if text.is_empty() { b"x".to_vec() } else { text }
}

/// Characters beyond ASCII as single bytes (Latin-1), not as UTF-8.
fn latin(text: &str) -> Vec<u8> {
    text.chars().map(|char| u8::try_from(u32::from(char)).unwrap()).collect()
}
