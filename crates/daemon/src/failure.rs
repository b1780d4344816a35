//! The error type of all commands. `cli/exit.rs` maps it to exit codes.

use std::error::Error;
use std::io;

use rouse_kube::client::connect::ConnectError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Bad usage or malformed input: exit code 2. The text names the place, the problem and the next step.
    #[error("{0}")]
    Input(String),
    /// The command failed while it ran: exit code 1. The text names the problem and the next step.
    #[error("{0}")]
    Failed(String),
    /// An operation of the system failed: exit code 1.
    #[error("{what}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// An error that is already in the log: only its exit code is left to set.
    #[error("{0}")]
    Logged(#[source] Box<CommandError>),
    /// The reader of our output closed the pipe, as `head` does: this is not an error.
    #[error("the reader of the output has gone")]
    ReaderGone,
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandError::ReaderGone,
            _ => CommandError::Io { what: "cannot write the output".to_owned(), error },
        }
    }
}

/// A bad kubeconfig or context is bad usage, whether a flag or a default names it.
impl From<ConnectError> for CommandError {
    fn from(error: ConnectError) -> Self {
        let next = match &error {
            ConnectError::NoContext { .. } => "choose one of them with --context NAME",
            ConnectError::NoServiceAccount(_) => {
                "mount the token of the pod's ServiceAccount (automountServiceAccountToken: true), or name a kubeconfig \
                 with --kubeconfig FILE"
            }
            ConnectError::NoKubeconfig => "name one with --kubeconfig FILE, or in KUBECONFIG",
            _ => "correct it, or name another one with --kubeconfig FILE, or in KUBECONFIG",
        };
        CommandError::Input(format!("{}\n  {next}", explained(&error)))
    }
}

/// An error with all its causes, in one line. Further lines would quote the kubeconfig, which has secrets.
fn explained(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        let said = said.lines().next().unwrap_or_default();
        // Some errors repeat their cause.
        if !text.contains(said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

/// Wraps an I/O error; `what` is the operation that failed.
pub(crate) fn failed(what: &str) -> impl FnOnce(io::Error) -> CommandError {
    move |error| CommandError::Io { what: what.to_owned(), error }
}
