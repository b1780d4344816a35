//! The guardian: a small parent process for one pod that kills all processes of the pod when the pod or `rouse` ends.
//!
//! It is the same binary, started as a hidden subcommand. Its arguments are the pod's command, its environment and working
//! directory are the pod's, its stdin is a socket to `rouse` (the protocol of `guardian_protocol.rs`), and its stdout and
//! stderr are the pod's output. However `rouse` dies, the socket closes, which is the order to stop. Its exit code is 0 unless
//! the guardian itself fails; its last message reports how the pod ended.

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

/// The time between SIGTERM and SIGKILL for a pod whose `rouse` is gone or has dropped it.
pub const ABANDONED_GRACE: Duration = Duration::from_secs(1);
/// The longest grace period: a longer one could overflow the clock.
const LONGEST_GRACE: Duration = Duration::from_hours(24);
/// The longest standard input of a pod: what every pipe can buffer.
const LONGEST_INPUT: usize = 4096;
/// `EINVAL`, for a failure without an error number.
const EINVAL: NonZeroI32 = NonZeroI32::new(22).unwrap();

/// The hidden subcommand: runs `command` and guards it until it ends.
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
    // Leave the terminal's foreground group: Ctrl-C must reach `rouse` only. Fails only for a group leader, which is not
    // in the group of `rouse` anyway.
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
    // Install handlers instead of ignoring the signals: the pod would inherit "ignore" through exec, but not a handler.
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()] {
        drop(signal(kind)?);
    }
    // Subscribe before the start: otherwise the end of a short-lived pod would be missed.
    let deaths = signal(SignalKind::child())?;
    let mut orders = BufReader::new(from_rouse).lines();
    // If `rouse` is gone before the first order, there is nothing to start.
    let Some(line) = orders.next_line().await? else { return Ok(()) };
    let Some(Order::Start(input)) = Order::parse(&line) else {
        return tell(&mut to_rouse, GuardianMessage::Failed(EINVAL)).await;
    };
    let pid = match start(command, &input) {
        Ok(pid) => pid,
        Err(error) => {
            let errno = error.raw_os_error();
            let errno = errno.and_then(NonZeroI32::new).unwrap_or(EINVAL);
            return tell(&mut to_rouse, GuardianMessage::Failed(errno)).await;
        }
    };
    if let Some(pid) = NonZeroU32::new(pid.as_raw_pid().unsigned_abs()) {
        // Fails if `rouse` is gone already. The pod must be ended in that case too.
        tell(&mut to_rouse, GuardianMessage::Started(pid)).await.ok();
    }
    let mut pod = Pod { pid, ended: None, kill_at: None };
    pod.watch(orders, deaths).await;
    let swept = pod.end();
    if let Some(ended) = pod.ended {
        tell(&mut to_rouse, GuardianMessage::Ended(ended)).await.ok();
    }
    swept
}

async fn tell(rouse: &mut OwnedWriteHalf, report: GuardianMessage) -> io::Result<()> {
    rouse.write_all(report.to_string().as_bytes()).await
}

/// Starts the pod in a process group of its own, and closes our copies of its output: `rouse` could not see the end of the
/// output while they are open.
fn start(command: &[OsString], input: &[u8]) -> io::Result<Pid> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    // Not waited for here: `process_tree` reaps all children, including this one.
    let child = Command::new(program).args(arguments).stdin(stdin(input)?).process_group(0).spawn()?;
    dup2_stdout(&nowhere).ok();
    dup2_stderr(&nowhere).ok();
    Ok(Pid::from_child(&child))
}

/// The standard input of the pod: `input`, or nothing.
fn stdin(input: &[u8]) -> io::Result<Stdio> {
    if input.is_empty() {
        return Ok(Stdio::null());
    }
    let (reader, mut writer) = io::pipe()?;
    // Fits into the buffer of the pipe, so this does not wait for the pod.
    writer.write_all(input.get(..LONGEST_INPUT).unwrap_or(input))?;
    Ok(reader.into())
}

/// The guarded process.
struct Pod {
    pid: Pid,
    /// How it ended; `None` while it runs.
    ended: Option<ExitStatus>,
    /// When all remaining processes are killed; `None` before the order to stop.
    kill_at: Option<Instant>,
}

impl Pod {
    /// Returns when the remaining processes are to be killed.
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
                    Some(None | Some(Order::Start(_))) => {}
                    None => self.stop(ABANDONED_GRACE),
                },
                _ = deaths.recv() => self.reap(),
                () = until(self.kill_at) => return,
            }
        }
    }

    /// Whether the remaining processes are to be killed now. If the pod ended by itself: at once. After an order to stop: when
    /// its process group is empty, because a shell dies of SIGTERM while the server that it started still finishes its
    /// requests.
    fn is_over(&self) -> bool {
        self.ended.is_some() && (self.kill_at.is_none() || test_kill_process_group(self.pid).is_err())
    }

    /// The first order sends SIGTERM; later ones can only shorten the grace period.
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
        // Only the first time: after that, another process could have the pid.
        if pid == self.pid && self.ended.is_none() {
            self.ended = Some(how);
        }
    }

    /// Sends SIGKILL to every descendant, until there is none.
    fn end(&mut self) -> io::Result<()> {
        if self.ended.is_none() {
            kill_process_group(self.pid, Signal::KILL).ok();
        }
        process_tree::end_all(|pid, how| self.reaped(pid, how))
    }
}

/// The next order; `None` once, when the socket closes.
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
