//! How a command can fail, and what the shell is told.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use rouse_kube::connect::ConnectError;

/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Bad usage or malformed input: exit code 2. The text names the place, the problem and the next step.
    #[error("{0}")]
    Input(String),
    /// It ran, and came to a bad end: exit code 1. The text says what, and the next step.
    #[error("{0}")]
    Failed(String),
    /// The world failed us: exit code 1.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// What came back.
        #[source]
        error: io::Error,
    },
    /// Whoever read our output has gone, as `head` does: nothing is wrong.
    #[error("the reader of the output has gone")]
    ReaderGone,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Io { what: "cannot write the output".to_owned(), error },
        }
    }
}

/// A bad kubeconfig or context is bad usage, whether it was named or found.
impl From<ConnectError> for Failure {
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
        Failure::Input(format!("{}\n  {next}", explained(&error)))
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

/// The exit code of `result`; what failed is said on `err`.
pub(crate) fn exit_code(result: Result<(), Failure>, err: &mut dyn Write) -> ExitCode {
    let (code, said) = match result {
        Ok(()) | Err(Failure::ReaderGone) => return ExitCode::SUCCESS,
        Err(Failure::Input(said)) => (2, said),
        Err(Failure::Failed(said)) => (1, said),
        Err(Failure::Io { what, error }) => (1, format!("{what}: {error}")),
    };
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    // Without stderr there is nobody left to tell.
    writeln!(err, "{red}error:{red:#} {said}").ok();
    ExitCode::from(code)
}

/// Help and version are answers, anything else is bad usage; clap has the words for both.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    error.print().ok();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
