//! The output of an app's pods: the last lines in memory, optionally a log file, and followers.
//!
//! Memory and file get every line: while a write blocks, the pod blocks on its pipe. A follower reads from memory at its own
//! pace: it never blocks the pod, and the lines that it misses are counted.

mod file;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use file::LogFile;

/// The longest line in bytes. A longer one is split.
pub const LONGEST_LINE: usize = 16 * 1024;
/// The memory that a line needs in addition to its text.
const LINE_OVERHEAD: usize = 64;
/// A follower gets about this many bytes at a time.
const BATCH: usize = 64 * 1024;
/// How many bytes are read from a pod at a time: the capacity of a pipe.
const CHUNK: usize = 64 * 1024;

/// How long to wait for more output of a pod that is gone.
const QUIET: Duration = Duration::from_secs(1);

/// The origin of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The pod's stdout.
    Stdout,
    /// The pod's stderr.
    Stderr,
    /// Written by `rouse`, not by a pod, and sent as an event too. A terminal that shows events leaves it out.
    Event,
}

/// A line that a pod printed, without the line end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The pod's name.
    pub pod: Arc<str>,
    /// The stream that it was printed to.
    pub stream: Stream,
    /// The text; invalid UTF-8 is replaced.
    pub text: Arc<str>,
}

impl Line {
    fn size(&self) -> usize {
        self.text.len() + LINE_OVERHEAD
    }
}

/// The output of an app: the last lines of all its pods, including pods that are gone.
#[derive(Debug)]
pub struct AppLog {
    ring: Arc<Mutex<Ring>>,
    /// Notifies followers of new lines. It closes when the app is gone.
    changed: watch::Sender<()>,
    file: Option<LogFile>,
}

/// A ring buffer of the last lines, limited by size.
#[derive(Debug)]
struct Ring {
    lines: VecDeque<Line>,
    /// The number of the oldest kept line, which is also the number of dropped lines.
    first: u64,
    /// The memory that the lines use.
    size: usize,
    /// The memory that the lines may use.
    keep: usize,
}

impl Ring {
    /// Adds a line and drops the oldest beyond the limit. The newest line stays, even if it alone exceeds the limit.
    fn push(&mut self, line: Line) {
        self.size += line.size();
        self.lines.push_back(line);
        while self.size > self.keep
            && self.lines.len() > 1
            && let Some(oldest) = self.lines.pop_front()
        {
            self.size -= oldest.size();
            self.first += 1;
        }
    }

    /// About [`BATCH`] bytes of lines from number `next` on, and how many lines before them were dropped.
    fn batch(&self, next: u64) -> Batch {
        let missed = self.first.saturating_sub(next);
        let at = usize::try_from(next.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let mut size = 0;
        let fits = |line: &&Line| {
            let fits = size < BATCH;
            size += line.size();
            fits
        };
        let lines = self.lines.iter().skip(at).take_while(fits).cloned().collect();
        Batch { missed, lines }
    }
}

impl AppLog {
    /// Keeps the last lines in `keep` bytes of memory.
    pub fn new(keep: usize) -> Arc<Self> {
        Self::with_file(keep, None)
    }

    /// Like [`AppLog::new`], and writes all lines to `file`.
    pub fn with_file(keep: usize, file: Option<LogFile>) -> Arc<Self> {
        let ring = Ring { lines: VecDeque::new(), first: 0, size: 0, keep };
        Arc::new(Self { ring: Arc::new(Mutex::new(ring)), changed: watch::Sender::new(()), file })
    }

    /// The kept lines, oldest first.
    pub fn tail(&self) -> Vec<Line> {
        lock(&self.ring).lines.iter().cloned().collect()
    }

    /// The last `count` lines of the pod called `pod`, oldest first.
    pub fn tail_of(&self, pod: &str, count: usize) -> Vec<Line> {
        let ring = lock(&self.ring);
        let own = ring.lines.iter().rev().filter(|line| &*line.pod == pod);
        let mut lines: Vec<_> = own.take(count).cloned().collect();
        lines.reverse();
        lines
    }

    /// Follows the log: the kept lines, then every new line.
    pub fn follow(&self) -> Follower {
        let changed = self.changed.subscribe();
        let next = lock(&self.ring).first;
        Follower { ring: Arc::clone(&self.ring), changed, next }
    }

    /// Keeps a line in memory. It is not written to the file.
    pub fn push(&self, line: Line) {
        self.keep([line]);
    }

    /// Keeps a line of `rouse` about the app, as if a pod called `rouse` had printed it. It is not written to the file.
    pub fn note(&self, text: impl Into<Arc<str>>) {
        self.push(Line { pod: "rouse".into(), stream: Stream::Stderr, text: text.into() });
    }

    /// Like [`AppLog::note`], for a line that a terminal does not show: it was sent as an event, or is normal for an app that
    /// starts slowly.
    pub fn note_event(&self, text: impl Into<Arc<str>>) {
        self.push(Line { pod: "rouse".into(), stream: Stream::Event, text: text.into() });
    }

    fn keep(&self, lines: impl IntoIterator<Item = Line>) {
        let mut ring = lock(&self.ring);
        lines.into_iter().for_each(|line| ring.push(line));
        drop(ring);
        self.changed.send_replace(());
    }

    /// Keeps these lines in memory, and returns when they are written to the file.
    async fn add(&self, lines: Vec<Line>) {
        if lines.is_empty() {
            return;
        }
        let text = self.file.as_ref().map(|_| file::text(&lines));
        self.keep(lines);
        if let (Some(file), Some(text)) = (&self.file, text)
            && let Err(problem) = file.append(text).await
        {
            self.note(problem);
        }
    }
}

/// Reads an app's output at its own pace. Ends when the app is gone and all lines are read.
#[derive(Debug)]
pub struct Follower {
    ring: Arc<Mutex<Ring>>,
    changed: watch::Receiver<()>,
    /// The number of the next line.
    next: u64,
}

/// Consecutive lines of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// How many lines before these the follower missed, because it was too slow.
    pub missed: u64,
    /// The lines, oldest first.
    pub lines: Vec<Line>,
}

impl Follower {
    /// Waits for the next lines, at least one; `None` at the end. Cancel safe: no line is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Batch> {
        loop {
            // Reset before reading: the reverse order misses a line that arrives in between.
            self.changed.mark_unchanged();
            let over = self.changed.has_changed().is_err();
            if let Some(batch) = self.waiting() {
                return Some(batch);
            }
            if over {
                return None;
            }
            // An error means that the app is gone, which the next iteration detects.
            self.changed.changed().await.ok();
        }
    }

    /// The next lines, if there are any, without waiting.
    pub fn waiting(&mut self) -> Option<Batch> {
        let batch = lock(&self.ring).batch(self.next);
        if batch.lines.is_empty() {
            return None;
        }
        self.next += batch.missed + u64::try_from(batch.lines.len()).unwrap_or(u64::MAX);
        Some(batch)
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Captures a stream of a pod to its end. Once the pod is `gone`, it stops when no output arrives for a while: another
/// process may keep the stream open. Reads more only after the last lines are written, which gives backpressure.
pub(crate) async fn capture(
    mut from: impl AsyncRead + Unpin,
    pod: Arc<str>,
    stream: Stream,
    log: Arc<AppLog>,
    gone: CancellationToken,
) {
    let mut cutter = Lines::default();
    let mut chunk = vec![0; CHUNK];
    let line = |text: String| Line { pod: Arc::clone(&pod), stream, text: text.into() };
    loop {
        let read = tokio::select! {
            biased;
            read = from.read(&mut chunk) => read,
            () = no_more_output(&gone) => break,
        };
        // An error ends the stream too.
        let Ok(length @ 1..) = read else { break };
        let mut lines = Vec::new();
        cutter.add(chunk.get(..length).unwrap_or_default(), &mut |text| lines.push(line(text)));
        log.add(lines).await;
    }
    let mut last = Vec::new();
    cutter.finish(&mut |text| last.push(line(text)));
    log.add(last).await;
}

async fn no_more_output(gone: &CancellationToken) {
    gone.cancelled().await;
    sleep_until(Instant::now() + QUIET).await;
}

/// Splits bytes into lines.
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

    /// The stream has ended: a last line without a line end is a line too.
    fn finish(self, push: &mut impl FnMut(String)) {
        if !self.partial.is_empty() {
            push(lossy(&self.partial));
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where to split a line that is too long: not within a UTF-8 character.
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
        // No valid characters: split anywhere.
        assert_eq!(lines_of(&[&vec![0x80; 2 * LONGEST_LINE]]).len(), 2);
    }

    fn line(pod: &str, text: &str) -> Line {
        Line { pod: pod.into(), stream: Stream::Stdout, text: text.into() }
    }

    #[test]
    fn as_many_lines_are_kept_as_fit_and_each_pods_can_be_told_apart() {
        let log = AppLog::new(3 * (1 + LINE_OVERHEAD));
        for (pod, text) in [("a-1", "1"), ("a-2", "2"), ("a-1", "3"), ("a-1", "4")] {
            log.push(line(pod, text));
        }
        assert_eq!(log.tail(), [line("a-2", "2"), line("a-1", "3"), line("a-1", "4")]);
        assert_eq!(log.tail_of("a-1", 1), [line("a-1", "4")]);
        assert_eq!(log.tail_of("a-1", 9), [line("a-1", "3"), line("a-1", "4")]);
        let huge = "x".repeat(1000);
        log.push(line("a-1", &huge));
        assert_eq!(log.tail(), [line("a-1", &huge)], "one line too long for all is kept all the same");
    }

    fn texts(batch: &Batch) -> Vec<&str> {
        batch.lines.iter().map(|line| &*line.text).collect()
    }

    #[tokio::test]
    async fn a_follower_sees_what_was_and_what_comes_and_one_that_is_too_slow_is_told() {
        let log = AppLog::new(2 * (6 + LINE_OVERHEAD));
        log.push(line("a-1", "before"));
        let mut follower = log.follow();
        log.push(line("a-1", "after"));
        let batch = follower.next().await.unwrap();
        assert_eq!((batch.missed, texts(&batch)), (0, vec!["before", "after"]));
        for n in 0..5 {
            log.push(line("a-1", &n.to_string()));
        }
        let batch = follower.next().await.unwrap();
        assert_eq!((batch.missed, texts(&batch)), (3, vec!["3", "4"]));
        log.push(line("a-1", "last"));
        drop(log);
        assert_eq!(texts(&follower.next().await.unwrap()), ["last"], "what was said before the end is read");
        assert_eq!(follower.next().await, None);
    }

    #[tokio::test]
    async fn a_follower_gets_much_in_batches_and_nothing_twice() {
        let log = AppLog::new(usize::MAX);
        let all: Vec<String> = (0..5000).map(|n| format!("{n:0100}")).collect();
        for text in &all {
            log.push(line("a-1", text));
        }
        let (mut follower, mut got, mut batches) = (log.follow(), Vec::new(), 0);
        while got.len() < all.len() {
            let batch = follower.next().await.unwrap();
            assert!(batch.missed == 0 && batch.lines.iter().map(Line::size).sum::<usize>() < 2 * BATCH);
            got.extend(texts(&batch).into_iter().map(str::to_owned));
            batches += 1;
        }
        assert!(got == all && batches > 5, "{batches} batches");
    }
}
