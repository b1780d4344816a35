//! What the outside wants of a command that runs.

use std::io::{self, IsTerminal as _};

use tokio::signal::unix::{SignalKind, signal};

/// A wish from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM, SIGINT; and SIGHUP if it came because the terminal is gone.
    Leave,
    /// SIGHUP.
    Reload,
}

/// The signals that we listen to.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    terminal: bool,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            terminal: io::stdout().is_terminal(),
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Leave,
            _ = self.interrupt.recv() => Signal::Leave,
            // A closed window sends it too. Nobody could stop us there any more, so it is not about a file.
            _ = self.hangup.recv() => if self.terminal && !io::stdout().is_terminal() {
                Signal::Leave
            } else {
                Signal::Reload
            },
        }
    }

    /// The next one that wants us to leave.
    pub(crate) async fn leave(&mut self) {
        while self.next().await != Signal::Leave {}
    }
}
