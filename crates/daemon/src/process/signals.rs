//! Unix signals: SIGTERM and SIGINT stop, SIGHUP reloads (or stops, if the terminal is gone); two within 500 ms count as one.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The most signals that wait to be handled.
const WAITING: usize = 8;
/// Two stop signals within this time count as one: a terminal and a parent process may both pass on one Ctrl-C.
const SAME: Duration = Duration::from_millis(500);

/// What a signal asks the process to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessSignal {
    /// Stop: SIGTERM, SIGINT, and SIGHUP if the terminal was closed.
    Leave,
    /// Reload: SIGHUP.
    Reload,
}

/// The signals of the process.
#[derive(Debug)]
pub(crate) struct Signals {
    counted: Receiver<ProcessSignal>,
    /// Receives each signal at once: two that come together would look separate if they were received late.
    _listener: JoinSet<()>,
}

impl Signals {
    /// Receives signals from now on.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut source = Source {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            terminal: io::stdout().is_terminal(),
        };
        let (counted, receiver) = channel(WAITING);
        let mut listener = JoinSet::new();
        listener.spawn(async move {
            let mut last = None;
            loop {
                let signal = source.next().await;
                if signal == ProcessSignal::Reload || counts(&mut last, Instant::now()) {
                    // If the queue is full, one more signal changes nothing.
                    counted.try_send(signal).ok();
                }
            }
        });
        Ok(Self { counted: receiver, _listener: listener })
    }

    /// Waits for the next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> ProcessSignal {
        match self.counted.recv().await {
            Some(signal) => signal,
            // The listener does not end before we do.
            None => std::future::pending().await,
        }
    }

    /// Waits for the next signal to stop.
    pub(crate) async fn leave(&mut self) {
        while self.next().await != ProcessSignal::Leave {}
    }
}

/// The system's signal streams.
#[derive(Debug)]
struct Source {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    terminal: bool,
}

impl Source {
    async fn next(&mut self) -> ProcessSignal {
        tokio::select! {
            _ = self.terminate.recv() => ProcessSignal::Leave,
            _ = self.interrupt.recv() => ProcessSignal::Leave,
            // A closed terminal also sends SIGHUP. Stop then: Ctrl-C can no longer stop the process.
            _ = self.hangup.recv() => if self.terminal && !io::stdout().is_terminal() {
                ProcessSignal::Leave
            } else {
                ProcessSignal::Reload
            },
        }
    }
}

/// True if a stop signal at `now` is not a repetition of the last one that counted.
fn counts(last: &mut Option<Instant>, now: Instant) -> bool {
    let counts = last.is_none_or(|last| now.duration_since(last) >= SAME);
    if counts {
        *last = Some(now);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_signals_within_half_a_second_are_one() {
        let (start, mut last) = (Instant::now(), None);
        let counted = [0, 1, 400, 499, 500, 501, 999, 1000]
            .into_iter()
            .filter(|millis| counts(&mut last, start + Duration::from_millis(*millis)));
        assert_eq!(counted.collect::<Vec<_>>(), [0, 500, 1000]);
    }
}
