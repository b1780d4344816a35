//! Runs pods as real processes for tests, and finds their processes by a mark in the environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::PodUid;
use rouse_local::address::AddressPool;
use rouse_local::command::{CommandSpec, SpawnError};
use rouse_local::output::{AppLog, Stream};
use rouse_local::process::{Launcher, Process, Start, UID_VARIABLE};
use rouse_net::random::system_seed;
use rustix::process::Pid;
use tokio::time::{interval, timeout};

pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_rouse-local-helper");
/// Longer than any step takes, also on a busy machine.
pub(crate) const GENEROUS: Duration = Duration::from_secs(30);

pub(crate) fn launcher() -> Launcher {
    Launcher::new(HELPER, ["guard"])
}

pub(crate) fn start(argv: &[&str], workdir: &Path) -> Start {
    Start {
        name: "app-1".into(),
        uid: PodUid::new(&format!("test-{:016x}", system_seed())),
        command: CommandSpec {
            argv: argv.iter().map(ToString::to_string).collect(),
            env: BTreeMap::from([("GREETING".into(), "hi".into())]),
            workdir: workdir.into(),
        },
        address: AddressPool::new(system_seed()).auto().unwrap(),
        log: AppLog::new(1 << 20),
        input: Arc::default(),
    }
}

pub(crate) async fn spawn(start: Start) -> Result<Process, SpawnError> {
    timeout(GENEROUS, Process::spawn(&launcher(), start)).await.expect("spawn took too long")
}

/// Runs a shell script as a pod.
pub(crate) async fn run(script: &str) -> (Process, Arc<AppLog>) {
    let start = start(&["sh", "-c", script], Path::new("/"));
    let log = Arc::clone(&start.log);
    (spawn(start).await.unwrap(), log)
}

/// Runs a shell script as a pod, and returns when it has printed `up`.
pub(crate) async fn run_until_up(script: &str) -> (Process, Arc<AppLog>) {
    let (process, log) = run(script).await;
    eventually("it prints up", || texts(&log).iter().any(|text| text == "up")).await;
    (process, log)
}

/// A script that becomes one of the helper's apps. Not a shell's `trap`: a shell loses signals that come while it starts
/// a program.
pub(crate) fn helper(app: &str) -> String {
    format!("exec {HELPER} {app}")
}

pub(crate) async fn exit_of(process: &Process) -> rouse_local::process::Exit {
    timeout(GENEROUS, process.exited()).await.expect("it did not end")
}

/// The lines on stdout. On stderr, a shell may report that its children were killed.
pub(crate) fn texts(log: &AppLog) -> Vec<String> {
    let lines = log.tail().into_iter().filter(|line| line.stream == Stream::Stdout);
    lines.map(|line| line.text.to_string()).collect()
}

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let mut ticks = interval(Duration::from_millis(5));
    let wait = async {
        while !condition() {
            ticks.tick().await;
        }
    };
    assert!(timeout(GENEROUS, wait).await.is_ok(), "not within {GENEROUS:?}: {what}");
}

/// A process as `/proc` shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pid: u32,
    pub(crate) state: char,
    pub(crate) parent: u32,
    pub(crate) session: u32,
}

pub(crate) fn look(pid: u32) -> Option<Seen> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Seen {
        pid,
        state: fields[0].chars().next()?,
        parent: fields[1].parse().ok()?,
        session: fields[3].parse().ok()?,
    })
}

pub(crate) fn all() -> Vec<Seen> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries.filter_map(|entry| look(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The living processes of a pod, its guardian included. By the mark, not by pid: a pid can belong to another process by now.
pub(crate) fn marked(uid: &str) -> Vec<Seen> {
    let mark = format!("{UID_VARIABLE}={uid}");
    let is_marked = |seen: &Seen| {
        let environment = fs::read(format!("/proc/{}/environ", seen.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all().into_iter().filter(is_marked).collect()
}

/// The dead children of `parent` that have not been reaped.
pub(crate) fn zombies(parent: u32) -> usize {
    all().iter().filter(|seen| seen.parent == parent && seen.state == 'Z').count()
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Prints `up` once it has two children, two in sessions of their own and two that were forked twice, all of which ignore
/// SIGTERM. With the shell itself, that is seven.
pub(crate) const FAMILY: &str = "trap '' TERM HUP
    sleep 1001 & sleep 1002 &
    setsid sleep 1003 & setsid sleep 1004 &
    (sleep 1005 & exec true) & (setsid sh -c 'sleep 1006 & exec true' &) &
    wait $!; echo up; wait";

/// How many of the pod's processes are a `sleep 100x`.
pub(crate) fn sleepers(uid: &str) -> usize {
    let is_sleep = |seen: &Seen| {
        let command = fs::read(format!("/proc/{}/cmdline", seen.pid)).unwrap_or_default();
        command.starts_with(b"sleep\x00100")
    };
    marked(uid).iter().filter(|seen| is_sleep(seen)).count()
}
