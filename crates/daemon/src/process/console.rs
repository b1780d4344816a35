//! The output of a running command: `rouse up` prints lines for people, other roles log events. One thread owns the output, so
//! a slow terminal or pipe blocks no other thread.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rouse_core::cold_start::{ColdStart, ColdStartOutcome};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::style;

/// How many lines may wait to be printed.
const WAITING: usize = 4096;
/// How many of these are reserved for our own messages: pods may print without end.
const RESERVED: usize = 1024;

/// The log target of messages that all roles share.
const TARGET: &str = "rouse_daemon";

/// Where a role reports what it does.
#[derive(Debug, Clone)]
pub enum Console {
    /// Lines for people, in colour.
    People(Printer),
    /// Events of the log.
    Log,
}

impl Console {
    /// Prints for people to `out`, from a thread of its own.
    pub fn open(out: impl Write + Send + 'static) -> io::Result<(Self, PrinterThread)> {
        let lost = |count| format!("… {count} lines not shown: they came faster than they could be printed");
        let (printer, thread) = Printer::start(out, lost)?;
        Ok((Console::People(printer), thread))
    }

    /// Prints or logs a message.
    pub fn say(&self, line: impl Into<String>) {
        match self {
            Console::People(printer) => printer.print(line),
            Console::Log => tracing::info!(target: TARGET, "{}", line.into()),
        }
    }

    /// Prints or logs a warning: the command goes on.
    pub fn warn(&self, text: &str) {
        match self {
            Console::People(printer) => printer.print(style::warning(text)),
            Console::Log => tracing::warn!(target: TARGET, "{text}"),
        }
    }

    /// Prints or logs an error.
    pub fn error(&self, text: &str) {
        match self {
            Console::People(printer) => printer.print(style::error(text)),
            Console::Log => tracing::error!(target: TARGET, "{text}"),
        }
    }

    /// Reports a cold start and its phases.
    pub fn cold_start(&self, cold: &ColdStart) {
        let Console::Log = self else { return self.say(style::cold_start(cold)) };
        let (service, outcome) = (&cold.service, cold.outcome.as_str());
        let total_ms = style::millis(cold.total());
        let phases: Vec<String> = cold
            .phases()
            .map(|(phase, took)| format!("{}={}ms", phase.as_str(), style::millis(took)))
            .collect();
        let phases = phases.join(" ");
        match cold.outcome {
            ColdStartOutcome::Waiting | ColdStartOutcome::Served => {
                tracing::info!(target: TARGET, %service, outcome, total_ms, phases, "cold start");
            }
            ColdStartOutcome::Unanswered | ColdStartOutcome::Failed | ColdStartOutcome::Abandoned => {
                tracing::warn!(target: TARGET, %service, outcome, total_ms, phases, "cold start");
            }
        }
    }

    /// Prints a line of a pod's output. Waits while the terminal cannot keep up.
    pub async fn pass_on(&self, line: impl Into<String>) {
        match self {
            Console::People(printer) => printer.pass_on(line).await,
            Console::Log => {}
        }
    }
}

/// The sender of lines to the thread that prints them.
#[derive(Debug, Clone)]
pub struct Printer {
    lines: Sender<Message>,
    lost: Arc<AtomicU64>,
    /// The permits for lines of pods.
    places: Arc<Semaphore>,
}

#[derive(Debug)]
enum Message {
    /// A line; a pod's line holds a permit until it is printed.
    Line(String, Option<OwnedSemaphorePermit>),
    End,
}

/// The thread that prints.
#[derive(Debug)]
pub struct PrinterThread {
    lines: Sender<Message>,
    done: oneshot::Receiver<()>,
}

/// The line that reports how many lines were lost.
type LostLine = fn(u64) -> String;

impl Printer {
    /// Prints to `out`, from a thread of its own. `lost_line` is printed in place of lines that did not fit.
    pub fn start(out: impl Write + Send + 'static, lost_line: LostLine) -> io::Result<(Self, PrinterThread)> {
        let (lines, waiting) = channel(WAITING);
        let (end, done) = oneshot::channel();
        let places = Arc::new(Semaphore::new(WAITING - RESERVED));
        let printer = Self { lines: lines.clone(), lost: Arc::default(), places };
        let lost = Arc::clone(&printer.lost);
        std::thread::Builder::new().name("printer".to_owned()).spawn(move || {
            print(out, waiting, &lost, lost_line);
            // The receiver may have given up waiting.
            end.send(()).ok();
        })?;
        Ok((printer, PrinterThread { lines, done }))
    }

    /// Prints a line of our own. Never blocks: a line that does not fit is counted.
    pub fn print(&self, line: impl Into<String>) {
        self.send(Message::Line(line.into(), None));
    }

    /// Prints a line of a pod. Waits for as long as the output cannot keep up.
    async fn pass_on(&self, line: impl Into<String>) {
        // Cannot fail: the semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        self.send(Message::Line(line.into(), place));
    }

    fn send(&self, message: Message) {
        if self.lines.try_send(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl PrinterThread {
    /// Prints the queued lines, for at most `within`: a suspended terminal would block for ever.
    pub async fn finish(self, within: Duration) {
        let Self { lines, done } = self;
        let last = async {
            lines.send(Message::End).await.ok();
            done.await.ok();
        };
        timeout(within, last).await.ok();
    }
}

fn print(mut out: impl Write, mut waiting: Receiver<Message>, lost: &AtomicU64, lost_line: LostLine) {
    // Ignore write errors: the reader may have closed the pipe, and requests are served all the same.
    while let Some(Message::Line(line, place)) = waiting.blocking_recv() {
        writeln!(out, "{line}").ok();
        drop(place);
        if waiting.is_empty() {
            catch_up(&mut out, lost, lost_line);
        }
    }
    catch_up(&mut out, lost, lost_line);
}

/// Reports the lines that were lost, once the queue is empty.
fn catch_up(out: &mut impl Write, lost: &AtomicU64, lost_line: LostLine) {
    let lost = lost.swap(0, Ordering::Relaxed);
    if lost > 0 {
        writeln!(out, "{}", lost_line(lost)).ok();
    }
    out.flush().ok();
}
