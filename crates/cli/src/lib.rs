//! The `rouse` command line, as a library so that tests and fuzzers can call what the binary runs.

pub mod admin;
pub mod args;
mod ask;
pub mod check;
pub mod config;
mod demo;
pub mod document;
mod explain;
mod failure;
pub mod gateway;
pub mod install;
pub mod process;
pub mod up;

use std::io::{self, BufWriter, Read, Write};
use std::process::ExitCode;

use anstream::AutoStream;
use args::{Command, Rouse};
use clap::Parser;
pub use failure::Failure;

/// The whole program: arguments in, exit code out.
pub fn main() -> ExitCode {
    let rouse = match Rouse::try_parse() {
        Ok(rouse) => rouse,
        Err(error) => return failure::usage(&error),
    };
    if let Command::PodGuardian(guardian) = rouse.command {
        return rouse_local::shim::main(guardian.command);
    }
    // Not locked: whoever is at the other end of a pipe decides how long a write takes.
    let mut out = BufWriter::new(AutoStream::auto(io::stdout()));
    let mut err = AutoStream::auto(io::stderr());
    let mut streams = Streams { stdin: &mut io::stdin(), out: &mut out, err: &mut err };
    let result = run(&rouse, &mut streams).and_then(|()| Ok(streams.out.flush()?));
    failure::exit_code(result, streams.err)
}

/// Where a command reads and writes. The writers strip colours where nobody would see them.
pub struct Streams<'s> {
    /// What `-f -` reads.
    pub stdin: &'s mut dyn Read,
    /// The answer.
    pub out: &'s mut dyn Write,
    /// Warnings and errors.
    pub err: &'s mut dyn Write,
}

/// Runs one command.
pub fn run(rouse: &Rouse, streams: &mut Streams<'_>) -> Result<(), Failure> {
    match &rouse.command {
        Command::Up(up) => up::run(up),
        Command::Gateway(args) => gateway::command(args, streams),
        Command::Install(args) => install::run(args, streams),
        Command::Check(args) => check::command(args, streams),
        Command::Status(status) => ask::status(status, streams),
        Command::Restart(restart) => ask::restart(restart, streams),
        Command::Scale(scale) => ask::scale(scale, streams),
        Command::Logs(logs) => ask::logs(logs, streams),
        Command::Explain(explain) => explain::run(explain, streams),
        Command::DemoApp(app) => demo::run(app),
        // The guardian speaks on the streams that it was given, so `main` starts it before there are others.
        Command::PodGuardian(_) => Err(Failure::Input("only `rouse up` can start a guardian".to_owned())),
    }
}
