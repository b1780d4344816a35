//! The end of a command: its exit code, and its error on stderr.

use std::io::Write;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

use crate::CommandError;

/// The exit code of `result`; what failed is said on `err`.
pub(crate) fn exit_code(result: Result<(), CommandError>, err: &mut dyn Write) -> ExitCode {
    let (code, said) = match result {
        Ok(()) | Err(CommandError::ReaderGone) => return ExitCode::SUCCESS,
        Err(CommandError::Input(said)) => (2, said),
        Err(CommandError::Failed(said)) => (1, said),
        Err(CommandError::Io { what, error }) => (1, format!("{what}: {error}")),
    };
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    // Without stderr the error cannot be shown.
    writeln!(err, "{red}error:{red:#} {said}").ok();
    ExitCode::from(code)
}

/// Help and version are answers, anything else is bad usage; clap has the words for both.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    error.print().ok();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
