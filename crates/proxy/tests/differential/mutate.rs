//! Mutates valid requests as attackers would: one part of a request, or any bytes.

use crate::grammar::{Body, Chunk, Message};
use crate::random::CaseRandom;
use crate::words::{BYTES, CODINGS, CONNECTIONS, HOSTS, LENGTHS, LINES, SIZES, TARGETS, VERSIONS};

/// One mutation of a case.
#[derive(Debug, Clone)]
pub(crate) struct Mutation {
    kind: Kind,
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    RepeatHeader,
    DropHeader,
    SpaceAroundColon,
    Coding,
    Length,
    LengthOff,
    BothLengths,
    Host,
    Target,
    Version,
    RequestLine,
    Method,
    Line,
    Connection,
    Upgrade,
    ChunkLine,
    ChunkEnd,
    ChunkExtension,
    Trailer,
    BodyEnd,
    EmptyLines,
    TooMuch,
    Flip,
    Delete,
    Insert,
    BareLf,
    BareCr,
    Truncate,
    Append,
    Copy,
    Splice,
}

const OF_MESSAGES: [Kind; 22] = [
    Kind::RepeatHeader,
    Kind::DropHeader,
    Kind::SpaceAroundColon,
    Kind::Coding,
    Kind::Length,
    Kind::LengthOff,
    Kind::BothLengths,
    Kind::Host,
    Kind::Target,
    Kind::Version,
    Kind::RequestLine,
    Kind::Method,
    Kind::Line,
    Kind::Connection,
    Kind::Upgrade,
    Kind::ChunkLine,
    Kind::ChunkEnd,
    Kind::ChunkExtension,
    Kind::Trailer,
    Kind::BodyEnd,
    Kind::EmptyLines,
    Kind::TooMuch,
];
const OF_BYTES: [Kind; 9] = [
    Kind::Flip,
    Kind::Delete,
    Kind::Insert,
    Kind::BareLf,
    Kind::BareCr,
    Kind::Truncate,
    Kind::Append,
    Kind::Copy,
    Kind::Splice,
];

impl Mutation {
    pub(crate) fn new(random: &mut CaseRandom) -> Self {
        let kind = match random.below(3) {
            0 => OF_BYTES[random.below(OF_BYTES.len())],
            _ => OF_MESSAGES[random.below(OF_MESSAGES.len())],
        };
        Self { kind, seed: random.next() }
    }

    /// Mutates a part of one of the requests.
    pub(crate) fn on_messages(&self, messages: &mut [Message]) {
        let mut random = CaseRandom::new(self.seed, 1);
        let at = random.below(messages.len());
        let Some(message) = messages.get_mut(at) else { return };
        match self.kind {
            Kind::ChunkLine | Kind::ChunkEnd | Kind::ChunkExtension | Kind::Trailer | Kind::BodyEnd => {
                message.in_chunks();
                self.on_body(&mut message.body, &mut random);
            }
            Kind::Host | Kind::Coding | Kind::Length | Kind::LengthOff | Kind::BothLengths => {
                self.on_fields(message, &mut random);
            }
            Kind::Target | Kind::Version | Kind::RequestLine | Kind::Method => {
                self.on_line(message, &mut random);
            }
            _ => self.on_headers(message, &mut random),
        }
    }

    fn on_headers(&self, message: &mut Message, random: &mut CaseRandom) {
        let headers = &mut message.headers;
        let at = random.below(headers.len());
        match self.kind {
            Kind::RepeatHeader => {
                if let Some(line) = headers.get(at).cloned() {
                    headers.insert(random.below(headers.len() + 1), line);
                }
            }
            Kind::DropHeader if at < headers.len() => drop(headers.remove(at)),
            Kind::SpaceAroundColon => {
                let Some(line) = headers.get_mut(at) else { return };
                let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
                let place = if random.percent(50) { colon } else { colon + 1 };
                let space = random.pick(&[&b" "[..], b"\t", b"  \t", b"\x0b", b"\r", b"\xa0"]);
                line.splice(place..place, space.iter().copied());
            }
            Kind::Line => headers.insert(random.below(headers.len() + 1), bytes(random.pick(&LINES))),
            Kind::Connection => {
                headers.insert(random.below(headers.len() + 1), bytes(random.pick(&CONNECTIONS)));
            }
            Kind::Upgrade => {
                headers.push(b"Connection: x, Upgrade".to_vec());
                headers.insert(
                    0,
                    bytes(random.pick(&["Upgrade: websocket", "Upgrade: h2c", "Upgrade: a, H2C/1"])),
                );
            }
            Kind::EmptyLines => message.before = b"\r\n".repeat(random.below(4)),
            // These cost a lot to send, so they are rare.
            Kind::TooMuch if random.percent(15) => message.too_much(random),
            Kind::TooMuch => headers.resize(headers.len() + random.below(60), b"X-Many: 1".to_vec()),
            _ => {}
        }
    }

    fn on_fields(&self, message: &mut Message, random: &mut CaseRandom) {
        let (name, value) = match self.kind {
            Kind::Host => ("Host", random.pick(&HOSTS).to_owned()),
            Kind::Coding => ("Transfer-Encoding", random.pick(&CODINGS).to_owned()),
            Kind::Length => ("Content-Length", random.pick(&LENGTHS).to_owned()),
            Kind::LengthOff => ("Content-Length", random.below(200).to_string()),
            _ if random.percent(50) => ("Content-Length", random.pick(&["0", "3", "6", "44"]).to_owned()),
            _ => ("Transfer-Encoding", "chunked".to_owned()),
        };
        let line = bytes(&format!("{name}: {value}"));
        let headers = &mut message.headers;
        let present = headers.iter().position(|line| {
            line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name.as_bytes()))
        });
        match present {
            Some(place) if self.kind != Kind::BothLengths && random.percent(75) => headers[place] = line,
            _ => headers.insert(random.below(headers.len() + 1), line),
        }
    }

    fn on_line(&self, message: &mut Message, random: &mut CaseRandom) {
        let line = String::from_utf8_lossy(&message.line).into_owned();
        let mut parts: Vec<&str> = line.split(' ').collect();
        if parts.len() != 3 {
            return;
        }
        match self.kind {
            Kind::Target => parts[1] = random.pick(&TARGETS),
            Kind::Version => parts[2] = random.pick(&VERSIONS),
            Kind::Method => {
                parts[0] =
                    random.pick(&["CONNECT", "get", "G(T", "", "OPTIONS", "X-Y_Z", "GET\t", "HEAD", "PUT"]);
            }
            _ => {
                let wrong = ["  ", "\t", "", " \t", "\u{b}", "\r", "\r\n", "\u{a0}"];
                let (one, other) = (random.pick(&wrong), random.pick(&[" ", " ", " ", "  "]));
                let (first, second) = if random.percent(50) { (one, other) } else { (other, one) };
                let ends = random.pick(&["", "", "", " "]);
                message.line = bytes(&format!("{}{first}{}{second}{}{ends}", parts[0], parts[1], parts[2]));
                return;
            }
        }
        message.line = bytes(&parts.join(" "));
    }

    fn on_body(&self, body: &mut Body, random: &mut CaseRandom) {
        let Body::Chunked { chunks, last, trailers, end } = body else { return };
        let at = random.below(chunks.len());
        match (self.kind, chunks.get_mut(at)) {
            (Kind::ChunkLine, Some(Chunk { line, .. })) if random.percent(85) => {
                *line = bytes(random.pick(&SIZES));
            }
            (Kind::ChunkLine, _) => {
                *last = bytes(random.pick(&["", "00", "0 ", "-0", "0x0", "0;a\0", "0\r", "5"]));
            }
            (Kind::ChunkEnd, Some(chunk)) => {
                chunk.end = random
                    .pick(&[&b""[..], b"\n", b"\r", b"\n\r", b"!\r\n", b"\r\n\r\n", b"\r\r\n"])
                    .to_vec();
            }
            (Kind::ChunkExtension, Some(Chunk { line, .. })) => {
                let long = "x".repeat(random.below(400));
                let with = [
                    ";a\r",
                    ";\t",
                    ";a=\"b\"",
                    ";\n",
                    ";a\u{ff}",
                    ";a\u{0}",
                    ";\r\nX-Smuggled: 1",
                    ";",
                    &long,
                ];
                line.extend(b";");
                line.extend(bytes(random.pick(&with)));
            }
            (Kind::Trailer, _) => {
                let wrong = [
                    "Content-Length: 3",
                    "Transfer-Encoding: chunked",
                    "Host: other.test",
                    " folded",
                    "smuggled",
                    "X-T: a\nX-U: b",
                    "X-T : 1",
                    "X-T: a\u{0}",
                    "X-T: 2",
                    "X-Forwarded-For: 203.0.113.9",
                ];
                trailers.push(bytes(random.pick(&wrong)));
            }
            _ => *end = random.pick(&[&b""[..], b"\n", b"\r", b"\r\r\n", b"\r\n\r\n"]).to_vec(),
        }
    }

    /// Mutates the bytes of the whole case.
    pub(crate) fn on_bytes(&self, bytes: &mut Vec<u8>) {
        let mut random = CaseRandom::new(self.seed, 2);
        let at = random.below(bytes.len());
        match self.kind {
            Kind::Flip => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            Kind::Delete if at < bytes.len() => {
                let end = (at + 1 + random.below(3)).min(bytes.len());
                drop(bytes.drain(at..end));
            }
            Kind::Insert => drop(bytes.splice(at..at, random.pick(&BYTES).iter().copied())),
            Kind::BareLf | Kind::BareCr => {
                let ends: Vec<usize> =
                    (1..bytes.len()).filter(|at| bytes[at - 1..=*at] == *b"\r\n").collect();
                if let Some(lf) = ends.get(random.below(ends.len())) {
                    bytes.remove(if self.kind == Kind::BareLf { lf - 1 } else { *lf });
                }
            }
            Kind::Truncate => bytes.truncate(at),
            Kind::Append => bytes.extend((0..=random.below(30)).map(|_| random.byte())),
            Kind::Copy => {
                let part = bytes[at..(at + random.below(60)).min(bytes.len())].to_vec();
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, part));
            }
            Kind::Splice => {
                let other = random.below(bytes.len());
                let (from, to) = (at.min(other), at.max(other));
                drop(bytes.drain(from..to));
            }
            _ => {}
        }
    }
}

/// Characters beyond ASCII as single bytes, where they fit into one.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for char in text.chars() {
        match u8::try_from(u32::from(char)) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend(char.to_string().bytes()),
        }
    }
    bytes
}
