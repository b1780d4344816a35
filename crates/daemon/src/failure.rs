//! How a command can fail.

use std::error::Error;
use std::io;

use rouse_kube::client::connect::ConnectError;

/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Bad usage or malformed input: exit code 2. The text names the place, the problem and the next step.
    #[error("{0}")]
    Input(String),
    /// It ran, and came to a bad end: exit code 1. The text says what, and the next step.
    #[error("{0}")]
    Failed(String),
    /// An operation of the system failed: exit code 1.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// What came back.
        #[source]
        error: io::Error,
    },
    /// The same as the error in it, which is in the log already: only the exit code is left to set.
    #[error("{0}")]
    Logged(#[source] Box<CommandError>),
    /// The reader of our output has gone, as `head` does: this is no error.
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

/// A bad kubeconfig or context is bad usage, whether it was named or found.
impl From<ConnectError> for CommandError {
    fn from(error: ConnectError) -> Self {
        let next = match &error {
            ConnectError::NoContext { .. } => "choose one of them with --context NAME",
            ConnectError::NoServiceAccount(_) => {
                "let the pod have its ServiceAccount's token (automountServiceAccountToken: true), or name a kubeconfig \
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

/// Makes a failure of an I/O error.
pub(crate) fn failed(what: &str) -> impl FnOnce(io::Error) -> CommandError {
    move |error| CommandError::Io { what: what.to_owned(), error }
}
