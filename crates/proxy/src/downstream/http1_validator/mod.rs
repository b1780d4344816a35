//! Checks the bytes of a client's HTTP/1 connection before hyper reads them, and refuses requests that two readers could
//! understand differently (request smuggling): hyper repairs such requests silently, and a pod may repair them in another way.
//!
//! [`Http1Validator`] follows where every message begins and ends. It checks whole lines, so the result does not depend on how
//! the bytes were cut into reads: a violation is found at the LF of its line, or at the first byte beyond a limit.
//!
//! In place of a head that is refused, hyper reads `REFUSED`.

mod field;
mod head;
mod violation;

use std::fmt;
use std::mem;

use memchr::memchr;

pub(crate) use head::needs_escape;
use head::{Body, Head, Next};
pub use violation::Violation;

use crate::budget::HeadLimits;

/// What hyper reads in place of a refused head. No client can send it: only OPTIONS may have this target.
pub(crate) const REFUSED: &[u8] = b"- * HTTP/1.1\r\nconnection: close\r\n\r\n";
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 22;
/// The largest capacity that the buffer for an incomplete line keeps while it is empty.
const KEPT: usize = 1024;

/// Where in the stream of requests a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramingPhase {
    /// Between two requests.
    Between,
    /// Within the head of a request.
    Head,
    /// Within the body of a request.
    Body,
    /// After a request for an upgrade: the bytes are not checked any more.
    Opaque,
}

/// A violation. hyper gets neither this byte nor any after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The position in the bytes of the last inspection.
    pub at: usize,
    /// The rule that was broken.
    pub violation: Violation,
    /// Whether it is in a head, of which hyper has read nothing; else it is in a body.
    pub in_head: bool,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.violation.fmt(f)
    }
}

impl std::error::Error for Refused {}

/// Checks the bytes of one connection.
#[derive(Debug, Default)]
pub struct Http1Validator {
    limits: HeadLimits,
    state: State,
    /// An upgrade was requested: after this body, bytes are not checked.
    upgrade: bool,
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    requests: u64,
    /// Where in the bytes of the last inspection the last head began; 0 if before them.
    head_at: usize,
    /// Request lines in the bytes of the last inspection that hyper would reject as they are: where each ends, and its
    /// length.
    unescaped: Vec<(usize, usize)>,
}

#[derive(Debug)]
enum State {
    /// Before a request line; `blank` if an empty line was skipped.
    Start {
        blank: bool,
    },
    Headers(Head),
    Sized {
        left: u64,
    },
    ChunkLine,
    ChunkData {
        left: u64,
    },
    ChunkCr,
    ChunkLf,
    Trailers {
        bytes: usize,
        count: usize,
    },
    /// After CONNECT.
    Spent,
    Opaque,
    Refused(Violation, FramingPhase),
}

impl Default for State {
    fn default() -> Self {
        Self::Start { blank: false }
    }
}

impl Http1Validator {
    /// The validator of a new connection.
    pub fn new(limits: HeadLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// How many bytes it keeps.
    pub(crate) fn kept(&self) -> usize {
        self.partial.capacity()
    }

    /// How many complete heads have arrived.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Where in the bytes of the last inspection the incomplete head began, 0 if before them; `None` if there is none. An
    /// empty line before a request counts as part of it here.
    pub(crate) fn open_head(&self) -> Option<usize> {
        let open = match self.state {
            State::Start { blank } => blank || !self.partial.is_empty(),
            State::Headers(_) => true,
            _ => false,
        };
        open.then_some(self.head_at)
    }

    /// Where the last head began, complete, incomplete or refused.
    pub(crate) fn head_at(&self) -> usize {
        self.head_at
    }

    /// Request lines in the bytes of the last inspection that hyper would reject as they are: where each ends, and its
    /// length. They may have begun in earlier bytes.
    pub(crate) fn unescaped(&self) -> &[(usize, usize)] {
        &self.unescaped
    }

    /// Where the connection is. An empty line before a request does not count as part of it.
    pub fn phase(&self) -> FramingPhase {
        match self.state {
            State::Start { .. } if self.partial.is_empty() || self.partial == b"\r" => FramingPhase::Between,
            State::Spent => FramingPhase::Between,
            State::Start { .. } | State::Headers(_) => FramingPhase::Head,
            State::Opaque => FramingPhase::Opaque,
            State::Refused(_, phase) => phase,
            _ => FramingPhase::Body,
        }
    }

    /// Checks the next bytes. After one violation, it refuses everything.
    pub fn inspect(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let mut at = 0;
        self.head_at = 0;
        self.unescaped.clear();
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let step = match &mut self.state {
                State::Opaque => return Ok(()),
                State::Sized { left } => {
                    let taken = take(left, rest.len());
                    if *left == 0 {
                        self.state = self.after_body();
                    }
                    Ok(taken)
                }
                State::ChunkData { left } => {
                    let taken = take(left, rest.len());
                    if *left == 0 {
                        self.state = State::ChunkCr;
                    }
                    Ok(taken)
                }
                State::ChunkCr => self.expect(rest, b'\r', State::ChunkLf),
                State::ChunkLf => self.expect(rest, b'\n', State::ChunkLine),
                State::Spent => Err((0, Violation::AfterConnect)),
                State::Refused(violation, _) => Err((0, *violation)),
                _ => self.line(rest),
            };
            match step {
                Ok(taken) => {
                    at += taken;
                    if let State::Headers(head) = &mut self.state
                        && let Some(length) = head.unescaped.take()
                    {
                        self.unescaped.push((at, length));
                    }
                    if matches!(self.state, State::Start { blank: false } | State::Spent)
                        && self.partial.is_empty()
                    {
                        self.head_at = at;
                    }
                }
                Err((offset, violation)) => return Err(self.refuse(at + offset, violation)),
            }
        }
        Ok(())
    }

    fn refuse(&mut self, at: usize, violation: Violation) -> Refused {
        let phase = match self.phase() {
            // Bytes between two requests that are refused are the beginning of a head, also a second empty line.
            FramingPhase::Between => FramingPhase::Head,
            phase => phase,
        };
        self.state = State::Refused(violation, phase);
        self.partial = Vec::new();
        Refused { at, violation, in_head: phase == FramingPhase::Head }
    }

    /// Whether no byte has arrived yet.
    fn is_new(&self) -> bool {
        self.requests == 0 && self.open_head().is_none() && matches!(self.state, State::Start { .. })
    }

    fn after_body(&self) -> State {
        if self.upgrade { State::Opaque } else { State::default() }
    }

    fn expect(&mut self, rest: &[u8], byte: u8, next: State) -> Result<usize, (usize, Violation)> {
        if rest.first() != Some(&byte) {
            return Err((0, Violation::ChunkEnd));
        }
        self.state = next;
        Ok(1)
    }

    /// The most bytes that the present line may have with its CRLF, and the violation if it has more.
    fn longest(&self) -> (usize, Violation) {
        match &self.state {
            State::Start { .. } => ((self.limits.line + 2).min(self.limits.head), Violation::LineTooLong),
            State::Headers(head) => (self.limits.head.saturating_sub(head.bytes), Violation::HeadTooLong),
            State::Trailers { bytes, .. } => {
                (self.limits.trailers.saturating_sub(*bytes), Violation::TrailersTooLong)
            }
            _ => (16 + self.limits.extension + 2, Violation::ChunkLine),
        }
    }

    /// Takes a line, or the part of it that has arrived. Returns how many bytes.
    fn line(&mut self, rest: &[u8]) -> Result<usize, (usize, Violation)> {
        if rest.first() == Some(&TLS_HANDSHAKE) && self.is_new() {
            // Checked at the first byte: a TLS handshake may have no line end for long.
            return Err((0, Violation::Tls));
        }
        let (longest, too_long) = self.longest();
        let room = longest.saturating_sub(self.partial.len());
        let window = rest.get(..room).unwrap_or(rest);
        let Some(lf) = memchr(b'\n', window) else {
            if window.len() < rest.len() {
                let line = || self.partial.iter().chain(window);
                // If the method or the version makes the line too long, the target is not to blame.
                let in_target = line().filter(|byte| **byte == b' ').take(2).count() == 1;
                let violation = match too_long {
                    Violation::LineTooLong if !in_target => Violation::RequestLine,
                    violation => violation,
                };
                return Err((window.len(), violation));
            }
            self.partial.extend_from_slice(window);
            return Ok(window.len());
        };
        let end = window.get(..lf).unwrap_or_default();
        let checked = if self.partial.is_empty() {
            self.check(end)
        } else {
            let mut line = mem::take(&mut self.partial);
            line.extend_from_slice(end);
            let checked = self.check(&line);
            if line.capacity() <= KEPT {
                line.clear();
                self.partial = line;
            }
            checked
        };
        checked.map(|()| lf + 1).map_err(|violation| (lf, violation))
    }

    /// Checks a whole line, without its LF.
    fn check(&mut self, line: &[u8]) -> Result<(), Violation> {
        let [line @ .., b'\r'] = line else { return Err(Violation::BareLf) };
        match &mut self.state {
            State::Start { blank } if line.is_empty() => {
                if mem::replace(blank, true) {
                    return Err(Violation::EmptyLines);
                }
            }
            State::Start { .. } => {
                let head = Head::begin(line).map_err(|violation| field::no_cr(line, violation))?;
                self.state = State::Headers(head);
            }
            State::Headers(head) if line.is_empty() => {
                let next = head.end()?;
                self.requests += 1;
                let (body, upgrade) = match next {
                    Next::Request(body) => (body, false),
                    Next::Opaque(body) => (body, true),
                    Next::Nothing => {
                        self.state = State::Spent;
                        return Ok(());
                    }
                };
                self.upgrade = upgrade;
                self.state = match body {
                    Some(Body::Sized(left)) => State::Sized { left },
                    Some(Body::Chunked) => State::ChunkLine,
                    None => self.after_body(),
                };
            }
            State::Headers(head) => {
                count(&mut head.headers, self.limits.headers)?;
                head.header(line)?;
                head.bytes += line.len() + 2;
            }
            State::Trailers { .. } if line.is_empty() => self.state = self.after_body(),
            State::Trailers { bytes, count: lines } => {
                count(lines, self.limits.headers)?;
                head::trailer(line)?;
                *bytes += line.len() + 2;
            }
            _ => {
                self.state = match field::chunk(line, self.limits.extension)? {
                    0 => State::Trailers { bytes: 0, count: 0 },
                    left => State::ChunkData { left },
                }
            }
        }
        Ok(())
    }
}

/// Subtracts from `left` as much as is `there`. Returns how much.
fn take(left: &mut u64, there: usize) -> usize {
    let taken = usize::try_from(*left).map_or(there, |left| left.min(there));
    *left = left.saturating_sub(taken as u64);
    taken
}

fn count(lines: &mut usize, limit: usize) -> Result<(), Violation> {
    *lines += 1;
    if *lines > limit { Err(Violation::TooManyHeaders) } else { Ok(()) }
}
