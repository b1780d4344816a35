//! The `rouse` command line, as a library so that tests and fuzzers can call what the binary runs.

pub mod args;
pub mod config;
pub mod document;
mod explain;
mod failure;

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
        Command::Explain(explain) => explain::run(explain, streams),
    }
}
