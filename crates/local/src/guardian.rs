//! The guardian: a small process between `rouse` and one pod, so that nothing of the pod can outlive either.
//!
//! It is the same binary, started as a hidden subcommand with the pod's command as its arguments, the pod's
//! environment and working directory as its own, a socket to `rouse` as its stdin (the lines of `wire.rs`),
//! and the pod's output as its stdout and stderr. `rouse` may die in any way: the socket then ends, and that is
//! the order to stop. Its exit code is always 0; the last line says how the pod ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::num::{NonZeroI32, NonZeroU32};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, setsid, test_kill_process_group};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::guardian_protocol::{ExitStatus, GuardianMessage, Order};
use crate::process_tree;

/// What a pod gets between SIGTERM and SIGKILL when `rouse` is gone, or does not care any more.
pub const ABANDONED_GRACE: Duration = Duration::from_secs(1);
/// Longer graces are cut: their end must be a moment that exists.
const LONGEST_GRACE: Duration = Duration::from_hours(24);
/// `EINVAL`, for a failure that has no number.
const EINVAL: NonZeroI32 = NonZeroI32::new(22).unwrap();

/// Runs `command` and guards it. The whole life of the hidden subcommand.
pub fn main(command: impl IntoIterator<Item = OsString>) -> ExitCode {
    let command: Vec<OsString> = command.into_iter().collect();
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(io::stderr(), "rouse: the guardian of {command:?} failed: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

fn run(command: &[OsString]) -> io::Result<()> {
    let rouse = socket_on_stdin()?;
    // Ctrl-C reaches the terminal's whole foreground group, and it is for `rouse` to decide what it means. Fails
    // only for the leader of a group, which then is not in `rouse`'s either.
    setsid().ok();
    rustix::thread::set_name(c"rouse-guardian").ok();
    process_tree::adopt_orphans()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(guard(rouse, command))
}

fn socket_on_stdin() -> io::Result<UnixStream> {
    let stdin: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let stdin = File::from(stdin);
    if !stdin.metadata()?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "only `rouse` itself can start it"));
    }
    Ok(UnixStream::from(OwnedFd::from(stdin)))
}

async fn guard(rouse: UnixStream, command: &[OsString]) -> io::Result<()> {
    rouse.set_nonblocking(true)?;
    let (from_rouse, mut to_rouse) = tokio::net::UnixStream::from_std(rouse)?.into_split();
    // Handled and thus ignored, but not by the pod: handlers end at exec, "ignore" would not.
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()] {
        drop(signal(kind)?);
    }
    // Before the start: the death of a pod that ends at once would go unnoticed.
    let deaths = signal(SignalKind::child())?;
    let pid = match start(command) {
        Ok(pid) => pid,
        Err(error) => {
            let errno = error.raw_os_error();
            let errno = errno.and_then(NonZeroI32::new).unwrap_or(EINVAL);
            return tell(&mut to_rouse, GuardianMessage::Failed(errno)).await;
        }
    };
    if let Some(pid) = NonZeroU32::new(pid.as_raw_pid().unsigned_abs()) {
        // It fails when `rouse` is gone already, and then the pod has to be ended all the same.
        tell(&mut to_rouse, GuardianMessage::Started(pid)).await.ok();
    }
    let mut pod = Pod { pid, ended: None, kill_at: None };
    pod.watch(BufReader::new(from_rouse).lines(), deaths).await;
    let swept = pod.end();
    if let Some(ended) = pod.ended {
        tell(&mut to_rouse, GuardianMessage::Ended(ended)).await.ok();
    }
    swept
}

async fn tell(rouse: &mut OwnedWriteHalf, report: GuardianMessage) -> io::Result<()> {
    rouse.write_all(report.to_string().as_bytes()).await
}

/// Starts the pod in a process group of its own, and lets go of its output: `rouse` could not see the end of it
/// while we hold it open.
fn start(command: &[OsString]) -> io::Result<Pid> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    // Not waited for here: `process_tree` reaps all children, this one among them.
    let child = Command::new(program).args(arguments).stdin(Stdio::null()).process_group(0).spawn()?;
    dup2_stdout(&nowhere).ok();
    dup2_stderr(&nowhere).ok();
    Ok(Pid::from_child(&child))
}

/// The guarded process.
struct Pod {
    pid: Pid,
    /// How it ended, once it has.
    ended: Option<ExitStatus>,
    /// When all remaining processes are killed. Set by the order to stop.
    kill_at: Option<Instant>,
}

impl Pod {
    /// Returns when the time has come to end what is left.
    async fn watch(
        &mut self,
        orders: Lines<BufReader<OwnedReadHalf>>,
        mut deaths: tokio::signal::unix::Signal,
    ) {
        let mut orders = Some(orders);
        while !self.is_over() {
            tokio::select! {
                order = next(&mut orders) => match order.as_deref().map(Order::parse) {
                    Some(Some(Order::Stop(grace))) => self.stop(grace),
                    Some(None) => {}
                    None => self.stop(ABANDONED_GRACE),
                },
                _ = deaths.recv() => self.reap(),
                () = until(self.kill_at) => return,
            }
        }
    }

    /// A pod that ends by itself takes everything with it. One that was told to stop may have told others: a shell
    /// dies of SIGTERM while the server it started still finishes its requests.
    fn is_over(&self) -> bool {
        self.ended.is_some() && (self.kill_at.is_none() || test_kill_process_group(self.pid).is_err())
    }

    /// The first order sends SIGTERM; a later one can only shorten the grace.
    fn stop(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace.min(LONGEST_GRACE);
        if self.kill_at.is_none() {
            kill_process_group(self.pid, Signal::TERM).ok();
        }
        self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
    }

    fn reap(&mut self) {
        process_tree::reap(|pid, how| self.reaped(pid, how));
    }

    fn reaped(&mut self, pid: Pid, how: ExitStatus) {
        // Only the first: by now another process could have the number.
        if pid == self.pid && self.ended.is_none() {
            self.ended = Some(how);
        }
    }

    /// SIGKILL to every descendant, until there is none.
    fn end(&mut self) -> io::Result<()> {
        if self.ended.is_none() {
            kill_process_group(self.pid, Signal::KILL).ok();
        }
        process_tree::end_all(|pid, how| self.reaped(pid, how))
    }
}

/// The next order; `None` once, when the socket has ended.
async fn next(orders: &mut Option<Lines<BufReader<OwnedReadHalf>>>) -> Option<String> {
    let Some(open) = orders else {
        return std::future::pending().await;
    };
    let order = open.next_line().await.ok().flatten();
    if order.is_none() {
        *orders = None;
    }
    order
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
