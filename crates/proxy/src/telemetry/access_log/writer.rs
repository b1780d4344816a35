//! Writes the access log on a thread of its own, so that no request waits for a disk or a pipe. When the thread cannot keep
//! up, lines are dropped and counted.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::format::Format;
use super::{AccessLog, AccessLogEntry};

/// How many lines, and how many bytes, may wait to be written.
const MOST_LINES: usize = 16 * 1024;
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// How long the last lines may take: a pipe that is not read must not keep the process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the time of day.
pub type TimeOfDay = fn() -> SystemTime;

/// Writes the lines of the access log on a thread of its own.
pub struct Writer {
    format: Format,
    time_of_day: TimeOfDay,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when there are lines, or when none will follow.
    more: Condvar,
    /// Notified when the thread has ended.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: Vec<String>,
    bytes: usize,
    /// Lines that were dropped since the last report.
    lost: u64,
    closed: bool,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }

    /// The next lines; `None` when none will follow.
    fn next(&self) -> Option<Vec<String>> {
        let idle = |queue: &mut Queue| queue.lines.is_empty() && !queue.closed;
        let mut queue = self.more.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        queue.bytes = 0;
        let lines = std::mem::take(&mut queue.lines);
        (!lines.is_empty()).then_some(lines)
    }

    /// Writes lines until none will follow.
    fn run(&self, mut out: impl Write) {
        while let Some(lines) = self.next() {
            let written = out.write_all(lines.concat().as_bytes()).and_then(|()| out.flush());
            // A full disk may have room again later: only these lines are lost.
            if written.is_err() {
                self.lock().lost += lines.len() as u64;
            }
        }
    }
}

/// Ends the waiting for the thread, also when writing panics.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        (queue.closed, queue.ended) = (true, true);
        drop(queue);
        self.0.done.notify_all();
    }
}

impl Writer {
    /// Starts a thread that writes to `out`. Dropping the writer writes the rest, like [`AccessLog::close`].
    pub fn start(
        out: impl Write + Send + 'static,
        format: Format,
        time_of_day: TimeOfDay,
    ) -> io::Result<Arc<dyn AccessLog>> {
        let shared = Arc::<Shared>::default();
        let ended = Ended(Arc::clone(&shared));
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            let ended = ended;
            ended.0.run(out);
        })?;
        Ok(Arc::new(Self { format, time_of_day, shared }))
    }
}

impl AccessLog for Writer {
    fn write(&self, entry: &AccessLogEntry<'_>) -> u64 {
        // Formatted without the lock, so that other threads do not wait for it.
        let line = self.format.line(entry, (self.time_of_day)());
        let mut queue = self.shared.lock();
        let fits = queue.lines.len() < MOST_LINES && queue.bytes + line.len() <= MOST_BYTES;
        if queue.closed || !fits {
            return std::mem::take(&mut queue.lost) + 1;
        }
        let first = queue.lines.is_empty();
        queue.bytes += line.len();
        queue.lines.push(line);
        let lost = std::mem::take(&mut queue.lost);
        drop(queue);
        if first {
            self.shared.more.notify_one();
        }
        lost
    }

    fn close(&self) {
        self.shared.close();
        let running = |queue: &mut Queue| !queue.ended;
        drop(self.shared.done.wait_timeout_while(self.shared.lock(), CLOSE_TIMEOUT, running));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("format", &self.format).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use http::Version;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn entry(target: &str) -> AccessLogEntry<'_> {
        AccessLogEntry {
            client: "192.0.2.7:5555".parse().unwrap(),
            method: "GET",
            target,
            version: Version::HTTP_11,
            host: b"cart.test",
            status: 200,
            sent: 5,
            took: Duration::ZERO,
            agent: b"",
            referer: b"",
            route: "cart",
            upstream: None,
            cold_start: false,
            error: None,
            trace: None,
        }
    }

    fn start(out: impl Write + Send + 'static) -> Arc<dyn AccessLog> {
        Writer::start(out, Format::Combined, || SystemTime::UNIX_EPOCH).unwrap()
    }

    /// Somewhere to write to, and what was written there.
    #[derive(Debug, Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Page {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes nothing until it is told to, and says when it is asked.
    struct Stuck {
        asked: SyncSender<()>,
        go_on: Receiver<()>,
        page: Page,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.try_send(()).ok();
            self.go_on.recv().ok();
            self.page.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_taken_note_of_is_out_when_it_is_closed_or_dropped() {
        for drops in [false, true] {
            let page = Page::default();
            let log = start(page.clone());
            for number in 0..100 {
                assert_eq!(log.write(&entry(&format!("/{number}"))), 0);
            }
            if drops {
                drop(log);
            } else {
                log.close();
                assert_eq!(log.write(&entry("/late")), 1, "the writer is closed");
            }
            let text = page.text();
            assert_eq!(text.lines().count(), 100);
            assert!(text.lines().enumerate().all(|(n, line)| line.contains(&format!("GET /{n} "))), "{text}");
        }
    }

    #[test]
    fn a_blocked_output_drops_and_counts_lines_without_waiting() {
        let ((asked, asks), (go, go_on)) = (sync_channel(1), sync_channel(1));
        let page = Page::default();
        let log = start(Stuck { asked, go_on, page: page.clone() });
        assert_eq!(log.write(&entry("/")), 0);
        asks.recv_timeout(PATIENCE).unwrap();
        let lost: u64 = (0..MOST_LINES + 7).map(|_| log.write(&entry("/"))).sum();
        assert_eq!(lost, 7);
        drop(go);
        log.close();
        assert_eq!(page.text().lines().count(), MOST_LINES + 1);
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes() {
        let ((asked, asks), (go, go_on)) = (sync_channel(1), sync_channel(1));
        let log = start(Stuck { asked, go_on, page: Page::default() });
        let line = "x".repeat(1024 * 1024);
        log.write(&entry(&line));
        asks.recv_timeout(PATIENCE).unwrap();
        let lost: u64 = (0..20).map(|_| log.write(&entry(&line))).sum();
        assert_eq!(lost, 20 - 7, "with what stands around it, eight do not fit");
        drop(go);
    }

    #[test]
    fn lost_lines_are_reported_by_the_next_write() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let log = start(Full);
        assert_eq!(log.write(&entry("/")), 0);
        log.close();
        assert_eq!(log.write(&entry("/")), 2);
    }
}
