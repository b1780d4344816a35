//! Signals: stop and reload.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// So many signals may wait to be looked at.
const WAITING: usize = 8;
/// Two signals to leave that come closer together are one: a terminal and a parent may both pass on one Ctrl-C.
const SAME: Duration = Duration::from_millis(500);

/// A wish from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessSignal {
    /// SIGTERM, SIGINT; and SIGHUP if it came because the terminal is gone.
    Leave,
    /// SIGHUP.
    Reload,
}

/// The signals that we listen to.
#[derive(Debug)]
pub(crate) struct Signals {
    counted: Receiver<ProcessSignal>,
    /// Takes each signal at once: two that come together must not look apart because we were busy.
    _listener: JoinSet<()>,
}

impl Signals {
    /// Listens from now on.
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
                    // If so many wait already, one more changes nothing.
                    counted.try_send(signal).ok();
                }
            }
        });
        Ok(Self { counted: receiver, _listener: listener })
    }

    /// The next one. Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> ProcessSignal {
        match self.counted.recv().await {
            Some(signal) => signal,
            // The listener does not end before we do.
            None => std::future::pending().await,
        }
    }

    /// The next one that wants us to leave.
    pub(crate) async fn leave(&mut self) {
        while self.next().await != ProcessSignal::Leave {}
    }
}

/// Where signals come from.
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
            // A closed terminal sends it too, and then means stop: nothing else could stop the process.
            _ = self.hangup.recv() => if self.terminal && !io::stdout().is_terminal() {
                ProcessSignal::Leave
            } else {
                ProcessSignal::Reload
            },
        }
    }
}

/// Whether a signal to leave that comes now is another than the last one that counted.
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
