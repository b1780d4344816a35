//! What hyper is given to read in place of what was refused, so that it answers in the right words.
//!
//! It has seen the beginning of the head already, so this is its end: one that hyper refuses, with 400, 414 or 431.

use super::{Limits, Refused, Violation};

/// Fails hyper's parser wherever in a head it stands. The empty line makes it look: after a first incomplete read, hyper
/// does not parse again until a head seems complete, and a client would wait for its answer.
const BAD: &[u8] = b"\0\r\n\r\n";
/// Longer targets hyper answers with 414.
const LONGEST_TARGET: usize = 65_534;
/// More headers hyper answers with 431, unless told otherwise.
pub(crate) const USUAL_HEADERS: usize = 100;
/// A piece of a target without end.
const FILLER: &[u8] = &[b'a'; 1024];

/// The end of a refused head, in parts that are to be read so many times.
#[derive(Debug, Clone)]
pub struct Spoilt {
    status: u16,
    parts: [(&'static [u8], usize); 3],
    part: usize,
    /// How much of the part has been read, this time.
    read: usize,
}

impl Spoilt {
    /// What hyper reads after `seen`, the last byte of the head that it has seen, if any.
    pub fn new(refused: &Refused, limits: &Limits, seen: Option<u8>) -> Self {
        const NOTHING: (&[u8], usize) = (b"", 0);
        // The first may be the end of a name or of a value.
        let headers: (&[u8], usize) = (b"a:\r\n", limits.headers.max(USUAL_HEADERS) + 2);
        let (status, parts): (u16, [(&[u8], usize); 3]) = match refused.violation {
            // Whatever hyper has seen of it: a target that is not too long would be served.
            Violation::LineTooLong => {
                let target = (FILLER, LONGEST_TARGET / FILLER.len() + 1);
                (414, [target, (b" HTTP/1.1\r\n\r\n", 1), NOTHING])
            }
            // A line too many ends with the byte that was refused.
            Violation::TooManyHeaders => (431, [(b"\n", 1), headers, (b"\r\n", 1)]),
            // After a CR it may be the empty line, whose end would make the head a good one.
            Violation::HeadTooLong if seen != Some(b'\r') => (431, [headers, (b"\r\n", 1), NOTHING]),
            _ => (400, [(BAD, 1), NOTHING, NOTHING]),
        };
        Self { status, parts, part: 0, read: 0 }
    }

    /// What hyper answers.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// How many bytes hyper must be ready to read of one head, so that it comes to its verdict.
    pub(crate) const fn longest(limits: &Limits) -> usize {
        let target = limits.line + LONGEST_TARGET;
        let headers = limits.head + 4 * (limits.headers + USUAL_HEADERS + 2);
        let longest = if target > headers { target } else { headers };
        longest + 3 * FILLER.len()
    }

    /// The next bytes, at most so many; none at the end.
    pub fn next(&mut self, most: usize) -> &'static [u8] {
        while let Some((bytes, times)) = self.parts.get_mut(self.part) {
            let rest = if *times == 0 { &[][..] } else { bytes.get(self.read..).unwrap_or_default() };
            if rest.is_empty() {
                (self.read, *times) = (0, times.saturating_sub(1));
                if *times == 0 {
                    self.part += 1;
                }
                continue;
            }
            let now = rest.get(..most).unwrap_or(rest);
            self.read += now.len();
            return now;
        }
        &[]
    }
}
