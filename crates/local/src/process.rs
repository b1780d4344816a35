//! One local pod: starts its process under a guardian, captures its output, stops it, and reports how it ended.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::PodUid;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::address::Lease;
use crate::command::{CommandSpec, SpawnError};
use crate::guardian_protocol::{GuardianMessage, Order};
use crate::output::{AppLog, Stream, capture};
use crate::process_tree;

pub use crate::guardian_protocol::ExitStatus;

/// The environment variable with the UID of the pod. It identifies the pod's processes if the guardian is gone.
pub const UID_VARIABLE: &str = "ROUSE_POD_UID";

/// How long a guardian may take to report whether the command runs.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long writing the rest of the output of a pod that is gone may take. The disk may be slow.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many times to look for processes that a killed guardian left behind.
const SWEEPS: usize = 100;

/// How to start a guardian: the program and arguments that lead to [`crate::guardian::main`].
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launcher {
    /// `program` with `arguments`, followed by the pod's command.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self { program: program.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// The running program, even if a build has replaced its file since.
    pub fn this_program(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Self> {
        let program =
            if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        Ok(Self::new(program, arguments))
    }
}

/// A pod to be started.
pub struct Start {
    /// `<app>-<ordinal>`.
    pub name: Arc<str>,
    /// Its UID: never used before.
    pub uid: PodUid,
    /// Its command.
    pub command: CommandSpec,
    /// The address that it should listen on. No other pod gets it while the process lives.
    pub address: Lease,
    /// The log for its output.
    pub log: Arc<AppLog>,
    /// What it reads from its standard input; empty: nothing. It may be a secret, so it is in neither arguments nor environment.
    pub input: Arc<[u8]>,
}

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("name", &self.name).field("uid", &self.uid).finish_non_exhaustive()
    }
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It was ordered to stop, but still runs.
    Stopping,
    /// The process and all its descendants have ended.
    Exited(Exit),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code or signal; `None` if the guardian was killed and could not report it.
    pub how: Option<ExitStatus>,
    /// Whether it had been ordered to stop.
    pub by_us: bool,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            Some(ended) => ended.fmt(f),
            None => f.write_str("was killed together with its guardian process"),
        }
    }
}

/// A running process. Dropping it stops it: SIGTERM at once, SIGKILL soon after.
#[derive(Debug)]
pub struct Process {
    name: Arc<str>,
    uid: PodUid,
    address: Lease,
    pid: u32,
    stop: watch::Sender<Option<Duration>>,
    exit: watch::Receiver<Option<Exit>>,
    /// Owns the task that holds the socket to the guardian. Dropping it closes the socket, which is the order to stop.
    _watch: JoinSet<()>,
}

impl Process {
    /// Starts a pod. Returns when its command runs, or with the reason why it cannot run.
    pub async fn spawn(launcher: &Launcher, start: Start) -> Result<Self, SpawnError> {
        let Start { name, uid, command, address, log, input } = start;
        command.check_at(&name, address.address())?;
        let (mut guardian, mut child) = launch(launcher, &command, &name, &uid, address.address())?;
        // If the guardian is gone, `report` returns `None`.
        guardian.order(&Order::Start((*input).into())).await;
        let (mut readers, gone) = (JoinSet::new(), CancellationToken::new());
        if let Some(stdout) = child.stdout.take() {
            let (pod, log) = (Arc::clone(&name), Arc::clone(&log));
            readers.spawn(capture(stdout, pod, Stream::Stdout, log, gone.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            let (pod, log) = (Arc::clone(&name), Arc::clone(&log));
            readers.spawn(capture(stderr, pod, Stream::Stderr, log, gone.clone()));
        }
        let readers = Readers { pod: Arc::clone(&name), tasks: readers, gone, log };
        let pid = match timeout(START_TIMEOUT, guardian.report()).await {
            Ok(Some(GuardianMessage::Started(pid))) => pid.get(),
            Ok(Some(GuardianMessage::Failed(errno))) => {
                // Reap the guardian, which ends now: otherwise it would stay as a zombie.
                timeout(START_TIMEOUT, child.wait()).await.ok();
                let source = io::Error::from_raw_os_error(errno.get());
                let command = command.argv_at(&name, address.address()).into_iter().next();
                return Err(SpawnError::Exec { command: command.unwrap_or_default(), source });
            }
            _ => return Err(SpawnError::GuardianSilent(launcher.program.clone())),
        };
        let (stop, asked) = watch::channel(None);
        let (ended, exit) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(guardian.watch(child, readers, asked, uid.clone(), ended));
        Ok(Self { name, uid, address, pid, stop, exit, _watch: tasks })
    }

    /// Orders it to stop: SIGTERM to its process group, and after `grace` SIGKILL to all remaining processes. A second call can
    /// only shorten the grace period.
    pub fn stop(&self, grace: Duration) {
        // Keep the shortest grace period, not the last: a longer one must not replace an order that was not sent yet.
        self.stop.send_modify(|asked| *asked = Some(asked.map_or(grace, |before| before.min(grace))));
    }

    /// Waits until the process is gone and its output is complete.
    pub async fn exited(&self) -> Exit {
        let lost = Exit { how: None, by_us: self.stop.borrow().is_some() };
        let mut exit = self.exit.clone();
        exit.wait_for(Option::is_some).await.map_or(lost, |exit| exit.unwrap_or(lost))
    }

    /// Its state.
    pub fn state(&self) -> ProcessState {
        match *self.exit.borrow() {
            Some(exit) => ProcessState::Exited(exit),
            None if self.stop.borrow().is_some() => ProcessState::Stopping,
            None => ProcessState::Running,
        }
    }

    /// `<app>-<ordinal>`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its UID.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The address that it should listen on.
    pub fn address(&self) -> SocketAddr {
        self.address.address()
    }

    /// The process id of the command, not of the guardian.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// Starts the guardian with the pod's command, environment and working directory.
fn launch(
    launcher: &Launcher,
    command: &CommandSpec,
    name: &str,
    uid: &PodUid,
    address: SocketAddr,
) -> Result<(Guardian, Child), SpawnError> {
    let spawn = || {
        let (ours, its) = UnixStream::pair()?;
        let its = its.into_std()?;
        its.set_nonblocking(false)?;
        let child = Command::new(&launcher.program)
            .arg0("rouse")
            .args(&launcher.arguments)
            .args(command.argv_at(name, address))
            .envs(command.env_at(name, address))
            .env(UID_VARIABLE, uid.as_str())
            .current_dir(&command.workdir)
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A killed guardian could not end the pod. It ends by itself when its socket closes.
            .kill_on_drop(false)
            .spawn()?;
        let (reports, orders) = ours.into_split();
        Ok((Guardian { reports: BufReader::new(reports).lines(), orders }, child))
    };
    spawn().map_err(|source| SpawnError::Guardian { program: launcher.program.clone(), source })
}

/// The tasks that read the output of a pod.
struct Readers {
    pod: Arc<str>,
    tasks: JoinSet<()>,
    /// Cancelled when the pod is gone.
    gone: CancellationToken,
    log: Arc<AppLog>,
}

impl Readers {
    /// The pod is gone: waits until the rest of its output is written. Output that is not written in time is lost, and the log
    /// notes that.
    async fn finish(&mut self) {
        self.gone.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(OUTPUT_TIMEOUT, ended).await.is_err() {
            self.log.note(format!(
                "the output of {} could not be written within {OUTPUT_TIMEOUT:?}: its last lines may be missing",
                self.pod
            ));
        }
    }
}

/// Our end of the socket to a guardian.
struct Guardian {
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl Guardian {
    /// The next message; `None` when the guardian is gone.
    async fn report(&mut self) -> Option<GuardianMessage> {
        GuardianMessage::parse(&self.reports.next_line().await.ok()??)
    }

    /// Sends an order. If the guardian is gone, [`Guardian::report`] returns `None`.
    async fn order(&mut self, order: &Order) {
        self.orders.write_all(order.to_string().as_bytes()).await.ok();
    }

    /// Sends orders to the guardian until the pod is gone, and reports how the pod ended.
    async fn watch(
        mut self,
        mut child: Child,
        mut readers: Readers,
        mut asked: watch::Receiver<Option<Duration>>,
        uid: PodUid,
        ended: watch::Sender<Option<Exit>>,
    ) {
        let report = loop {
            tokio::select! {
                report = self.report() => break report,
                Ok(()) = asked.changed() => {
                    let grace = *asked.borrow_and_update();
                    if let Some(grace) = grace {
                        self.order(&Order::Stop(grace)).await;
                    }
                }
            }
        };
        let by_us = asked.borrow().is_some();
        let how = if let Some(GuardianMessage::Ended(how)) = report {
            Some(how)
        } else {
            sweep(&uid).await;
            None
        };
        // Reap the guardian, which ends now: otherwise it would stay as a zombie.
        child.wait().await.ok();
        readers.finish().await;
        ended.send_replace(Some(Exit { how, by_us }));
    }
}

/// Kills the processes that a guardian left behind, until none is found.
async fn sweep(uid: &PodUid) {
    let mark = format!("{UID_VARIABLE}={uid}");
    for _ in 0..SWEEPS {
        if process_tree::end_marked(&mark) == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
}
