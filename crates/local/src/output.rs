//! What pods print: cut into lines, the last ones kept, and told to whoever follows.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::broadcast;

/// The longest line in bytes. A longer one becomes several.
pub const LONGEST_LINE: usize = 16 * 1024;
/// How far a follower may lag behind before it misses lines.
const LAG: usize = 256;

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The pod's stdout.
    Stdout,
    /// The pod's stderr.
    Stderr,
}

/// A line that a pod printed, without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The pod's name.
    pub pod: Arc<str>,
    /// Where it was printed.
    pub stream: Stream,
    /// What; anything that was not UTF-8 is replaced.
    pub text: Arc<str>,
}

/// The output of an app: the last lines of all its pods, also of those that are gone.
#[derive(Debug)]
pub struct Log {
    capacity: usize,
    last: Mutex<VecDeque<Line>>,
    live: broadcast::Sender<Line>,
}

impl Log {
    /// Keeps the last `capacity` lines.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity, last: Mutex::default(), live: broadcast::Sender::new(LAG) })
    }

    /// The kept lines, the oldest first.
    pub fn tail(&self) -> Vec<Line> {
        self.last().iter().cloned().collect()
    }

    /// The last `count` lines of the pod called `pod`, the oldest first.
    pub fn tail_of(&self, pod: &str, count: usize) -> Vec<Line> {
        let last = self.last();
        let mut lines: Vec<_> =
            last.iter().rev().filter(|line| &*line.pod == pod).take(count).cloned().collect();
        lines.reverse();
        lines
    }

    /// The kept lines and every line after them, none twice and none left out. A follower that falls behind misses
    /// lines and is told how many ([`broadcast::error::RecvError::Lagged`]); pods never wait for it.
    pub fn follow(&self) -> (Vec<Line>, broadcast::Receiver<Line>) {
        let last = self.last();
        (last.iter().cloned().collect(), self.live.subscribe())
    }

    /// A pod printed something, or `rouse` has something to say about it.
    pub fn push(&self, line: Line) {
        let mut last = self.last();
        if last.len() == self.capacity {
            last.pop_front();
        }
        if self.capacity > 0 {
            last.push_back(line.clone());
        }
        // Under the lock, or `follow` could see the line twice. Nobody following is no error.
        self.live.send(line).ok();
    }

    fn last(&self) -> MutexGuard<'_, VecDeque<Line>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a pod's stream to its end.
pub(crate) async fn capture(mut from: impl AsyncRead + Unpin, pod: Arc<str>, stream: Stream, log: Arc<Log>) {
    let mut lines = Lines::default();
    let mut chunk = vec![0; 8 * 1024];
    let mut push = |text: String| log.push(Line { pod: Arc::clone(&pod), stream, text: text.into() });
    // An error is an end, too: there is nothing more to be had.
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        lines.add(chunk.get(..length).unwrap_or_default(), &mut push);
    }
    lines.finish(&mut push);
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], push: &mut impl FnMut(String)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.partial.extend_from_slice(text);
            while self.partial.len() > LONGEST_LINE {
                let rest = self.partial.split_off(cut(&self.partial));
                push(lossy(&self.partial));
                self.partial = rest;
            }
            if text.len() < piece.len() {
                push(lossy(self.partial.strip_suffix(b"\r").unwrap_or(&self.partial)));
                self.partial.clear();
            }
        }
    }

    /// The stream has ended; a last line without an end is a line.
    fn finish(self, push: &mut impl FnMut(String)) {
        if !self.partial.is_empty() {
            push(lossy(&self.partial));
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where to cut a line that is too long: not within a character.
fn cut(bytes: &[u8]) -> usize {
    let continues = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    (LONGEST_LINE - 3..=LONGEST_LINE).rev().find(|at| !continues(at)).unwrap_or(LONGEST_LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(chunks: &[&[u8]]) -> Vec<String> {
        let mut got = Vec::new();
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.add(chunk, &mut |line| got.push(line));
        }
        lines.finish(&mut |line| got.push(line));
        got
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_arrive() {
        let text = "one\n\ntwo\r\nth\rree\nü\u{1F600}\nlast";
        let expected = ["one", "", "two", "th\rree", "ü\u{1F600}", "last"];
        assert_eq!(lines_of(&[text.as_bytes()]), expected);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(lines_of(&bytes), expected);
        assert_eq!(lines_of(&[b"a\n"]), ["a"]);
        assert_eq!(lines_of(&[]), Vec::<String>::new());
        assert_eq!(lines_of(&[b"\xffa\xc3\n"]), ["\u{fffd}a\u{fffd}"]);
    }

    #[test]
    fn a_line_that_is_too_long_becomes_several_and_loses_nothing() {
        for unit in ["x", "ü", "€", "\u{1F600}"] {
            let text = "ab".to_owned() + &unit.repeat(3 * LONGEST_LINE / unit.len());
            let got = lines_of(&[text.as_bytes(), b"\nnext\n"]);
            assert_eq!(got.last().unwrap(), "next");
            assert_eq!(got[..got.len() - 1].concat(), text, "{unit}");
            assert!(got.len() == 5 && got.iter().all(|line| line.len() <= LONGEST_LINE), "{unit}");
        }
        let exact = "x".repeat(LONGEST_LINE);
        assert_eq!(lines_of(&[exact.as_bytes(), b"\n"]), [exact]);
        // No characters at all: cut somewhere.
        assert_eq!(lines_of(&[&vec![0x80; 2 * LONGEST_LINE]]).len(), 2);
    }

    fn line(pod: &str, text: &str) -> Line {
        Line { pod: pod.into(), stream: Stream::Stdout, text: text.into() }
    }

    #[test]
    fn only_the_last_lines_are_kept_and_each_pods_can_be_told_apart() {
        let log = Log::new(3);
        for (pod, text) in [("a-1", "1"), ("a-2", "2"), ("a-1", "3"), ("a-1", "4")] {
            log.push(line(pod, text));
        }
        assert_eq!(log.tail(), [line("a-2", "2"), line("a-1", "3"), line("a-1", "4")]);
        assert_eq!(log.tail_of("a-1", 1), [line("a-1", "4")]);
        assert_eq!(log.tail_of("a-1", 9), [line("a-1", "3"), line("a-1", "4")]);
    }

    #[test]
    fn a_follower_sees_what_was_and_what_comes_and_one_that_lags_is_told() {
        let log = Log::new(2);
        log.push(line("a-1", "before"));
        let (before, mut after) = log.follow();
        log.push(line("a-1", "after"));
        assert_eq!(before, [line("a-1", "before")]);
        assert_eq!(after.try_recv().unwrap(), line("a-1", "after"));
        for _ in 0..=LAG {
            log.push(line("a-1", "more"));
        }
        assert_eq!(after.try_recv(), Err(broadcast::error::TryRecvError::Lagged(1)));
    }
}
