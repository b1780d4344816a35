//! `rouse-bench`: benchmarks of Rouse and its peers. bench/README.md explains the results.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for people: results go to stdout, progress and warnings to stderr"
)]

mod args;
mod certificate;
mod child;
mod clock;
mod cluster;
mod cold_start;
mod generated_config;
mod growth;
mod h2load;
mod http;
mod load;
mod matrix;
mod ports;
mod proc;
mod proxy;
mod role;
mod rouse;
mod stats;
mod svg;
mod table;
mod tools;

use std::process::ExitCode;

use args::{Bench, Command};
use clap::Parser;

/// Any error; it ends the measurement and is printed.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

fn main() -> ExitCode {
    let bench = Bench::parse();
    match run(&bench.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rouse-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::ColdStart(ask) => measure(|| cold_start::run(ask)),
        Command::Proxy(ask) => measure(|| proxy::run(ask)),
        Command::Growth(ask) => measure(|| growth::run(ask)),
        Command::Counts(ask) => measure(|| proxy::counts::run(ask)),
        Command::ClusterColdStart(ask) => measure(|| cluster::cold_start::run(ask)),
        Command::ClusterSize(ask) => measure(|| cluster::size::run(ask)),
        Command::ClusterScaling(ask) => measure(|| cluster::scaling::run(ask)),
        Command::ClusterSlices(ask) => measure(|| cluster::slices::run(ask)),
        Command::App => role::app::run(),
        Command::Upstream(upstream) => role::upstream::run(upstream),
        Command::UpstreamH2c => role::upstream_h2c::run(),
        Command::Forward(forward) => role::minimal_proxy::run(forward),
        Command::Connect(connect) => role::connection_load::run(connect),
        Command::SliceController(ask) => role::slice_controller::run(ask),
        Command::DataPlane(size) => role::data_plane::run(size),
    }
}

/// Runs a measurement that SIGINT and SIGTERM interrupt, so that child processes are ended.
fn measure(what: impl FnOnce() -> Result<()>) -> Result<()> {
    clock::watch_for_signals()?;
    proc::raise_open_files();
    what()
}
