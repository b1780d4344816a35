//! Requests as attackers send them: one part spoilt, or any byte.

use crate::dice::Dice;
use crate::grammar::{Body, Chunk, Message};
use crate::words::{BYTES, CODINGS, CONNECTIONS, HOSTS, LENGTHS, LINES, SIZES, TARGETS, VERSIONS};

/// One way to spoil a case.
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
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let kind = match dice.below(3) {
            0 => OF_BYTES[dice.below(OF_BYTES.len())],
            _ => OF_MESSAGES[dice.below(OF_MESSAGES.len())],
        };
        Self { kind, seed: dice.throw() }
    }

    /// Spoils a part of one of the requests.
    pub(crate) fn on_messages(&self, messages: &mut [Message]) {
        let mut dice = Dice::new(self.seed, 1);
        let at = dice.below(messages.len());
        let Some(message) = messages.get_mut(at) else { return };
        match self.kind {
            Kind::ChunkLine | Kind::ChunkEnd | Kind::ChunkExtension | Kind::Trailer | Kind::BodyEnd => {
                message.in_chunks();
                self.on_body(&mut message.body, &mut dice);
            }
            Kind::Host | Kind::Coding | Kind::Length | Kind::LengthOff | Kind::BothLengths => {
                self.on_fields(message, &mut dice);
            }
            Kind::Target | Kind::Version | Kind::RequestLine | Kind::Method => {
                self.on_line(message, &mut dice);
            }
            _ => self.on_headers(message, &mut dice),
        }
    }

    fn on_headers(&self, message: &mut Message, dice: &mut Dice) {
        let headers = &mut message.headers;
        let at = dice.below(headers.len());
        match self.kind {
            Kind::RepeatHeader => {
                if let Some(line) = headers.get(at).cloned() {
                    headers.insert(dice.below(headers.len() + 1), line);
                }
            }
            Kind::DropHeader if at < headers.len() => drop(headers.remove(at)),
            Kind::SpaceAroundColon => {
                let Some(line) = headers.get_mut(at) else { return };
                let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
                let place = if dice.percent(50) { colon } else { colon + 1 };
                let space = dice.pick(&[&b" "[..], b"\t", b"  \t", b"\x0b", b"\r", b"\xa0"]);
                line.splice(place..place, space.iter().copied());
            }
            Kind::Line => headers.insert(dice.below(headers.len() + 1), bytes(dice.pick(&LINES))),
            Kind::Connection => headers.insert(dice.below(headers.len() + 1), bytes(dice.pick(&CONNECTIONS))),
            Kind::Upgrade => {
                headers.push(b"Connection: x, Upgrade".to_vec());
                headers.insert(
                    0,
                    bytes(dice.pick(&["Upgrade: websocket", "Upgrade: h2c", "Upgrade: a, H2C/1"])),
                );
            }
            Kind::EmptyLines => message.before = b"\r\n".repeat(dice.below(4)),
            // These cost a lot to send, so they are rare.
            Kind::TooMuch if dice.percent(15) => message.too_much(dice),
            Kind::TooMuch => headers.resize(headers.len() + dice.below(60), b"X-Many: 1".to_vec()),
            _ => {}
        }
    }

    fn on_fields(&self, message: &mut Message, dice: &mut Dice) {
        let (name, value) = match self.kind {
            Kind::Host => ("Host", dice.pick(&HOSTS).to_owned()),
            Kind::Coding => ("Transfer-Encoding", dice.pick(&CODINGS).to_owned()),
            Kind::Length => ("Content-Length", dice.pick(&LENGTHS).to_owned()),
            Kind::LengthOff => ("Content-Length", dice.below(200).to_string()),
            _ if dice.percent(50) => ("Content-Length", dice.pick(&["0", "3", "6", "44"]).to_owned()),
            _ => ("Transfer-Encoding", "chunked".to_owned()),
        };
        let line = bytes(&format!("{name}: {value}"));
        let headers = &mut message.headers;
        let present = headers.iter().position(|line| {
            line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name.as_bytes()))
        });
        match present {
            Some(place) if self.kind != Kind::BothLengths && dice.percent(75) => headers[place] = line,
            _ => headers.insert(dice.below(headers.len() + 1), line),
        }
    }

    fn on_line(&self, message: &mut Message, dice: &mut Dice) {
        let line = String::from_utf8_lossy(&message.line).into_owned();
        let mut parts: Vec<&str> = line.split(' ').collect();
        if parts.len() != 3 {
            return;
        }
        match self.kind {
            Kind::Target => parts[1] = dice.pick(&TARGETS),
            Kind::Version => parts[2] = dice.pick(&VERSIONS),
            Kind::Method => {
                parts[0] =
                    dice.pick(&["CONNECT", "get", "G(T", "", "OPTIONS", "X-Y_Z", "GET\t", "HEAD", "PUT"]);
            }
            _ => {
                let wrong = ["  ", "\t", "", " \t", "\u{b}", "\r", "\r\n", "\u{a0}"];
                let (one, other) = (dice.pick(&wrong), dice.pick(&[" ", " ", " ", "  "]));
                let (first, second) = if dice.percent(50) { (one, other) } else { (other, one) };
                let ends = dice.pick(&["", "", "", " "]);
                message.line = bytes(&format!("{}{first}{}{second}{}{ends}", parts[0], parts[1], parts[2]));
                return;
            }
        }
        message.line = bytes(&parts.join(" "));
    }

    fn on_body(&self, body: &mut Body, dice: &mut Dice) {
        let Body::Chunked { chunks, last, trailers, end } = body else { return };
        let at = dice.below(chunks.len());
        match (self.kind, chunks.get_mut(at)) {
            (Kind::ChunkLine, Some(Chunk { line, .. })) if dice.percent(85) => {
                *line = bytes(dice.pick(&SIZES));
            }
            (Kind::ChunkLine, _) => {
                *last = bytes(dice.pick(&["", "00", "0 ", "-0", "0x0", "0;a\0", "0\r", "5"]));
            }
            (Kind::ChunkEnd, Some(chunk)) => {
                chunk.end =
                    dice.pick(&[&b""[..], b"\n", b"\r", b"\n\r", b"!\r\n", b"\r\n\r\n", b"\r\r\n"]).to_vec();
            }
            (Kind::ChunkExtension, Some(Chunk { line, .. })) => {
                let long = "x".repeat(dice.below(400));
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
                line.extend(bytes(dice.pick(&with)));
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
                trailers.push(bytes(dice.pick(&wrong)));
            }
            _ => *end = dice.pick(&[&b""[..], b"\n", b"\r", b"\r\r\n", b"\r\n\r\n"]).to_vec(),
        }
    }

    /// Spoils the bytes of the whole case.
    pub(crate) fn on_bytes(&self, bytes: &mut Vec<u8>) {
        let mut dice = Dice::new(self.seed, 2);
        let at = dice.below(bytes.len());
        match self.kind {
            Kind::Flip => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << dice.below(8);
                }
            }
            Kind::Delete if at < bytes.len() => {
                let end = (at + 1 + dice.below(3)).min(bytes.len());
                drop(bytes.drain(at..end));
            }
            Kind::Insert => drop(bytes.splice(at..at, dice.pick(&BYTES).iter().copied())),
            Kind::BareLf | Kind::BareCr => {
                let ends: Vec<usize> =
                    (1..bytes.len()).filter(|at| bytes[at - 1..=*at] == *b"\r\n").collect();
                if let Some(lf) = ends.get(dice.below(ends.len())) {
                    bytes.remove(if self.kind == Kind::BareLf { lf - 1 } else { *lf });
                }
            }
            Kind::Truncate => bytes.truncate(at),
            Kind::Append => bytes.extend((0..=dice.below(30)).map(|_| dice.byte())),
            Kind::Copy => {
                let part = bytes[at..(at + dice.below(60)).min(bytes.len())].to_vec();
                let to = dice.below(bytes.len());
                drop(bytes.splice(to..to, part));
            }
            Kind::Splice => {
                let other = dice.below(bytes.len());
                let (from, to) = (at.min(other), at.max(other));
                drop(bytes.drain(from..to));
            }
            _ => {}
        }
    }
}

/// Bytes beyond ASCII as they are, where they fit into one.
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
