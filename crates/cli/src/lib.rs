//! The `rouse` command line as a library, so that tests and fuzzers can call it: parses arguments and runs one command.

mod admin_client;
pub mod args;
pub mod check;
mod demo;
mod exit;
mod explain;
pub mod inject;
mod input;
pub mod install;
mod names;
pub mod simulate;
pub mod xds_bootstrap;

use std::io::{self, BufWriter, Read, Write};
use std::process::ExitCode;

use anstream::AutoStream;
use args::{Command, Rouse, XdsCommand};
use clap::Parser;
pub use rouse_daemon::CommandError;

/// Parses the arguments, runs the command, and returns its exit code.
pub fn main() -> ExitCode {
    let rouse = match Rouse::try_parse() {
        Ok(rouse) => rouse,
        Err(error) => return exit::usage(&error),
    };
    if let Command::PodGuardian(guardian) = rouse.command {
        return rouse_local::guardian::main(guardian.command);
    }
    // Not locked: a slow reader of a pipe would hold the lock.
    let mut out = BufWriter::new(AutoStream::auto(io::stdout()));
    let mut err = AutoStream::auto(io::stderr());
    let mut streams = Streams { stdin: &mut io::stdin(), out: &mut out, err: &mut err };
    let result = run(&rouse, &mut streams).and_then(|()| Ok(streams.out.flush()?));
    exit::exit_code(result, streams.err)
}

/// The streams of a command. The writers strip colours outside a terminal.
pub struct Streams<'s> {
    /// The input of `-f -`.
    pub stdin: &'s mut dyn Read,
    /// The output.
    pub out: &'s mut dyn Write,
    /// Warnings and errors.
    pub err: &'s mut dyn Write,
}

/// Runs one command.
pub fn run(rouse: &Rouse, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    match &rouse.command {
        Command::Role(role) => role.run(streams.out, streams.err),
        Command::Xds(xds) => match &xds.command {
            None => rouse_daemon::xds::command(&xds.role, streams.out, streams.err),
            Some(XdsCommand::Bootstrap(args)) => xds_bootstrap::run(args, streams),
        },
        Command::Install(args) => install::run(args, streams),
        Command::Inject(args) => inject::run(args, streams),
        Command::Check(args) => check::command(args, streams),
        Command::Status(status) => admin_client::status(status, streams),
        Command::Restart(restart) => admin_client::restart(restart, streams),
        Command::Scale(scale) => admin_client::scale(scale, streams),
        Command::Logs(logs) => admin_client::logs(logs, streams),
        Command::Explain(explain) => explain::run(explain, streams),
        Command::Simulate(args) => simulate::run(args, streams),
        Command::DemoApp(app) => demo::run(app),
        // The guardian uses the process's own streams, so `main` starts it before these are wrapped.
        Command::PodGuardian(_) => {
            Err(CommandError::Input("only `rouse up` can start a guardian".to_owned()))
        }
    }
}
