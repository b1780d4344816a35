//! Child processes: each is ended, by its pid, when its guard is dropped.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::Result;
use crate::clock::{patiently, until};

/// How long a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// The most lines of a process's output that are kept.
const MOST_LINES: usize = 2_000;

type Lines = Arc<Mutex<Vec<String>>>;

/// A process that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    name: String,
    child: Child,
    lines: Lines,
}

impl Running {
    /// Starts it and reads its output, so that it never blocks on a full pipe.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let lines = Lines::default();
        // The readers end with the process's pipes.
        if let Some(stdout) = child.stdout.take() {
            keep(stdout, Arc::clone(&lines));
        }
        if let Some(stderr) = child.stderr.take() {
            keep(stderr, Arc::clone(&lines));
        }
        Ok(Self { name: name.to_owned(), child, lines })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `ready` returns a value. If the process ends instead, the error contains its output.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut ready: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        until(&format!("{} {what}", self.name), patience, || {
            if let Some(status) = self.child.try_wait()? {
                let lines = self.lines().join("\n");
                return Err(format!("{} ended ({status}) instead of: {what}\n{lines}", self.name).into());
            }
            Ok(ready(self))
        })
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself.
            kill_process(pid, signal).ok();
        }
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self, patience: Duration) -> Result<ExitStatus> {
        until(&format!("{} to end", self.name), patience, || Ok(self.child.try_wait()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        self.signal(Signal::TERM);
        if patiently("its end", GRACE, || Ok(self.child.try_wait()?)).is_err() {
            // Reaped in any case, so that its CPU time counts as ours and its pid is not reused.
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

fn keep(stream: impl Read + Send + 'static, lines: Lines) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(std::io::Result::ok) {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() < MOST_LINES {
                lines.push(line);
            }
        }
    });
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn output(name: &str, command: &mut Command, patience: Duration) -> Result<String> {
    let mut running = Running::start(name, command)?;
    let status = running.ended(patience)?;
    if status.success() {
        // The pipe may hold a last line that the reader has not taken yet.
        return until(&format!("the output of {name}"), Duration::from_secs(5), || {
            let done = Arc::strong_count(&running.lines) == 1;
            Ok(done.then(|| running.lines().join("\n")))
        });
    }
    Err(format!("{name} failed ({status}):\n{}", running.lines().join("\n")).into())
}
