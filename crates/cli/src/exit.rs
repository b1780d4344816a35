//! Maps the result of a command to its exit code, and prints its error on stderr.

use std::io::Write;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

use crate::CommandError;

/// The exit code of `result`. Prints the error to `err`, unless it is in the log already.
pub(crate) fn exit_code(result: Result<(), CommandError>, err: &mut dyn Write) -> ExitCode {
    let failure = match result {
        Ok(()) | Err(CommandError::ReaderGone) => return ExitCode::SUCCESS,
        Err(failure) => failure,
    };
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    // Without stderr the error cannot be shown.
    match &failure {
        CommandError::Logged(_) => {}
        CommandError::Io { what, error } => drop(writeln!(err, "{red}error:{red:#} {what}: {error}")),
        failure => drop(writeln!(err, "{red}error:{red:#} {failure}")),
    }
    ExitCode::from(code(&failure))
}

fn code(failure: &CommandError) -> u8 {
    match failure {
        CommandError::ReaderGone => 0,
        CommandError::Failed(_) | CommandError::Io { .. } => 1,
        CommandError::Input(_) => 2,
        CommandError::Logged(failure) => code(failure),
    }
}

/// Prints clap's text. Help and version exit with 0, anything else is bad usage.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    error.print().ok();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
