//! How a command can fail, and what the shell is told.

use std::io::{self, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

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
