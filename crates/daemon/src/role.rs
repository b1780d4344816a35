//! The lifecycle of a long-running command: start, serve until a signal or failure, drain, exit.

use std::io;
use std::time::Duration;

use anstream::AutoStream;
use rouse_config::settings::Values;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::failure::{CommandError, failed};
use crate::logging::Log;
use crate::process::capacity;
use crate::process::console::{Console, PrinterThread};
use crate::process::drain::{self, DrainOutcome, DrainTimes};
use crate::process::signals::{ProcessSignal, Signals};

/// How long the reader of our output may take to read the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);
/// How long threads and tasks may take to end after they were cancelled.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(5);

/// A long-running command that has been started.
pub(crate) trait Role: Sized {
    /// The threads of everything but the data plane, which has its own workers.
    const CONTROL_THREADS: usize = 2;

    /// Serves until the role has nothing more to do or a part of it breaks. May be dropped and called again.
    async fn run(&mut self) -> RunEnd;

    /// Reloads what can change while it runs, on SIGHUP.
    fn reload(&mut self);

    /// Lets requests under way finish, and stops everything.
    async fn stop(&mut self, times: DrainTimes, signals: &mut Signals) -> DrainOutcome;

    /// The error text after `what` has ended unexpectedly, with the next step.
    fn next_step(&self, what: String) -> String {
        what
    }
}

/// Why a role ended without a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// A part ended unexpectedly, with what ended: the process fails.
    Broken(String),
    /// The role has done all it was for: the process ends as after a signal. The role has logged why.
    Finished,
}

/// Where a role reports what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConsoleOutput {
    /// Lines for people on standard output.
    Terminal,
    /// Events of the log, on standard error.
    Log,
}

/// Starts a role and runs it until a signal or a failure.
pub(crate) fn run<R: Role>(
    values: &Values,
    report: ConsoleOutput,
    times: DrainTimes,
    start: impl AsyncFnOnce(&Console) -> Result<R, CommandError>,
) -> Result<(), CommandError> {
    capacity::raise_open_files();
    let runtime = control_runtime(R::CONTROL_THREADS).map_err(failed("cannot start threads"))?;
    let log = Log::start(values)?;
    let ended = runtime.block_on(async {
        let mut reporter = JoinSet::new();
        reporter.spawn(log.report_suppressed());
        let ended = open_and_serve(report, times, start).await;
        let ended = ended.map_err(|failure| log.log_failure(failure));
        log.close(LAST_LINES).await;
        ended
    });
    // Do not wait for tasks that still block: nothing is left to do.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended
}

async fn open_and_serve<R: Role>(
    report: ConsoleOutput,
    times: DrainTimes,
    start: impl AsyncFnOnce(&Console) -> Result<R, CommandError>,
) -> Result<(), CommandError> {
    let (console, printer) = console(report)?;
    let mut signals = Signals::listen().map_err(failed("cannot listen to signals"))?;
    let ended = serve(start, times, &mut signals, &console).await;
    if let Some(printer) = printer {
        printer.finish(LAST_LINES).await;
    }
    ended
}

async fn serve<R: Role>(
    start: impl AsyncFnOnce(&Console) -> Result<R, CommandError>,
    times: DrainTimes,
    signals: &mut Signals,
    console: &Console,
) -> Result<(), CommandError> {
    let mut role = start(console).await?;
    let broken = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                ProcessSignal::Leave => break None,
                ProcessSignal::Reload => role.reload(),
            },
            end = role.run() => match end {
                RunEnd::Broken(what) => break Some(what),
                RunEnd::Finished => break None,
            },
        }
    };
    if let Some(what) = &broken {
        console.error(&format!("{what}: stopping"));
    }
    let drained = role.stop(times, signals).await;
    match broken {
        Some(what) => Err(CommandError::Failed(role.next_step(what))),
        None if drained.forced => Err(CommandError::Failed("stopped at once by a second signal".to_owned())),
        None => {
            drain::report(drained, times, console);
            Ok(())
        }
    }
}

fn console(report: ConsoleOutput) -> Result<(Console, Option<PrinterThread>), CommandError> {
    match report {
        ConsoleOutput::Log => Ok((Console::Log, None)),
        ConsoleOutput::Terminal => {
            let opened = Console::open(AutoStream::auto(io::stdout()));
            let (console, printer) = opened.map_err(failed("cannot start the thread that prints"))?;
            Ok((console, Some(printer)))
        }
    }
}

/// The runtime of everything but the data plane.
fn control_runtime(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(threads).thread_name("control").enable_all().build()
}
