//! No process of a pod outlives the pod or `rouse`, however either ends.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{
    FAMILY, GENEROUS, HELPER, eventually, exit_of, helper, look, marked, run_until_up, signal, sleepers,
    spawn, start, zombies,
};
use rouse_local::process::{Exit, ExitStatus, ProcessState};
use rouse_net::random::system_seed;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Runs a script as the pod of another `rouse`, and returns when the script has printed `up`.
async fn rouse_up(script: &str, workdir: &Path) -> (Child, String) {
    let uid = format!("test-{:016x}", system_seed());
    let mut command = Command::new(HELPER);
    command
        .args(["up", &uid, "sh", "-c", script])
        .current_dir(workdir)
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut rouse = command.spawn().unwrap();
    let mut lines = BufReader::new(rouse.stdout.take().unwrap()).lines();
    let line = timeout(GENEROUS, lines.next_line()).await.expect("it does not come up").unwrap();
    assert_eq!(line.as_deref(), Some("up"));
    (rouse, uid)
}

#[tokio::test]
async fn when_rouse_is_killed_every_descendant_of_its_pods_is_ended() {
    let (mut rouse, uid) = rouse_up(FAMILY, Path::new("/")).await;
    eventually("the family is complete", || sleepers(&uid) == 6).await;
    let mut sessions: Vec<_> = marked(&uid).iter().map(|seen| seen.session).collect();
    sessions.sort_unstable();
    sessions.dedup();
    assert!(sessions.len() >= 4, "setsid had no effect: {sessions:?}");
    rouse.kill().await.unwrap();
    eventually("all are gone", || marked(&uid).is_empty()).await;
}

#[tokio::test]
async fn when_rouse_is_killed_its_pods_are_asked_before_they_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut rouse, uid) = rouse_up(&helper("polite asked"), folder.path()).await;
    rouse.kill().await.unwrap();
    eventually("all are gone", || marked(&uid).is_empty()).await;
    assert_eq!(std::fs::read_to_string(folder.path().join("asked")).unwrap(), "bye");
}

#[tokio::test]
async fn a_pod_that_forks_all_the_time_cannot_run_away() {
    // Bounded, so that a failure of this test does not exhaust the machine.
    let fork = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); (setsid sleep 100 &); sleep 0.01; done";
    let script = format!("trap '' TERM; (setsid sh -c '{fork}' &); echo up; exec sleep 100");
    let (mut rouse, uid) = rouse_up(&script, Path::new("/")).await;
    eventually("it has forked", || marked(&uid).len() > 10).await;
    rouse.kill().await.unwrap();
    eventually("all are gone", || marked(&uid).is_empty()).await;
}

#[tokio::test]
async fn a_pod_that_ends_takes_everything_it_started_with_it() {
    let script = FAMILY.replace("echo up; wait", "exit 3");
    let start = start(&["sh", "-c", &script], Path::new("/"));
    let process = spawn(start).await.unwrap();
    assert_eq!(exit_of(&process).await, Exit { how: Some(ExitStatus::Code(3)), by_us: false });
    // Checked at once: nothing may be left when the pod is reported as gone.
    assert_eq!(marked(process.uid().as_str()), []);
}

#[tokio::test]
async fn a_stop_leaves_nothing_behind() {
    let (process, _log) = run_until_up(FAMILY).await;
    process.stop(Duration::from_millis(20));
    assert_eq!(exit_of(&process).await, Exit { how: Some(ExitStatus::Signal(9)), by_us: true });
    assert_eq!(marked(process.uid().as_str()), []);
}

#[tokio::test]
async fn a_dropped_process_is_stopped() {
    let (process, _log) = run_until_up(FAMILY).await;
    let uid = process.uid().clone();
    drop(process);
    eventually("all are gone", || marked(uid.as_str()).is_empty()).await;
    eventually("the guardian is reaped", || zombies(std::process::id()) == 0).await;
}

#[tokio::test]
async fn a_start_without_a_waiting_caller_leaves_nothing_behind() {
    let start = start(&["sh", "-c", FAMILY], Path::new("/"));
    let uid = start.uid.clone();
    let launcher = crate::harness::launcher();
    let mut spawning = Box::pin(rouse_local::process::Process::spawn(&launcher, start));
    // One poll starts the guardian; then the caller drops the future.
    tokio::select! {
        biased;
        _ = &mut spawning => panic!("it cannot be done yet"),
        () = std::future::ready(()) => {}
    }
    assert_ne!(marked(uid.as_str()), [], "the guardian runs");
    drop(spawning);
    eventually("all are gone", || marked(uid.as_str()).is_empty()).await;
}

#[tokio::test]
async fn killing_the_guardian_ends_its_pod() {
    let (process, _log) = run_until_up(FAMILY).await;
    eventually("the family is complete", || sleepers(process.uid().as_str()) == 6).await;
    signal(look(process.pid()).unwrap().parent, Signal::KILL);
    assert_eq!(exit_of(&process).await, Exit { how: None, by_us: false });
    eventually("all are gone", || marked(process.uid().as_str()).is_empty()).await;
}

#[tokio::test]
async fn the_guardian_is_deaf_to_what_a_terminal_sends() {
    let (process, _log) = run_until_up(&helper("polite")).await;
    let guardian = look(process.pid()).unwrap();
    let guardian = look(guardian.parent).unwrap();
    assert_ne!(guardian.session, look(std::process::id()).unwrap().session, "Ctrl-C would reach it");
    for sent in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        signal(guardian.pid, sent);
    }
    assert_eq!(process.state(), ProcessState::Running);
    process.stop(GENEROUS);
    assert_eq!(exit_of(&process).await, Exit { how: Some(ExitStatus::Code(7)), by_us: true });
}

#[tokio::test]
async fn a_pod_inherits_no_deafness_to_signals() {
    let (process, _log) = run_until_up("echo up; exec sleep 1000").await;
    let mask = |pid: u32, name: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    };
    // The signals that this test process ignores, except SIGPIPE, which every Rust program ignores. Signals from 32 on
    // belong to the C library.
    let ours = mask(std::process::id(), "SigIgn:") & !(1 << 12);
    assert_eq!(mask(process.pid(), "SigIgn:") & 0x7fff_ffff & !ours, 0);
    assert_eq!(mask(process.pid(), "SigBlk:"), 0);
}

#[tokio::test]
async fn the_dead_are_reaped_while_the_pod_lives_on() {
    let script = "for i in 1 2 3 4 5 6 7 8; do (sh -c 'sleep 0.02' &); done; echo up; exec sleep 1000";
    let (process, _log) = run_until_up(script).await;
    let guardian = look(process.pid()).unwrap().parent;
    let alone = || marked(process.uid().as_str()).len() == 2;
    eventually("only the guardian and the pod are left", alone).await;
    eventually("no zombie is left", || zombies(guardian) == 0).await;
    assert_eq!(process.state(), ProcessState::Running);
}

#[tokio::test]
async fn after_a_pod_is_gone_its_guardian_is_neither_there_nor_a_zombie() {
    let (process, _log) = run_until_up("echo up; exec sleep 1000").await;
    let guardian = look(process.pid()).unwrap().parent;
    process.stop(GENEROUS);
    exit_of(&process).await;
    assert_eq!(look(guardian), None);
}

#[tokio::test]
async fn the_guardian_does_not_hold_the_pods_output_open() {
    let (process, _log) = run_until_up("echo up; exec sleep 1000").await;
    let guardian = look(process.pid()).unwrap().parent;
    let link = |pid: u32, fd: &str| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
    let output = [link(process.pid(), "1"), link(process.pid(), "2")];
    eventually("it lets go of the output", || {
        let fds = std::fs::read_dir(format!("/proc/{guardian}/fd")).unwrap().filter_map(Result::ok);
        let mut links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        !links.any(|link| output.contains(&link))
    })
    .await;
    // The pod must not inherit the guardian's socket: an open copy would look as if `rouse` were still running.
    let socket = link(guardian, "0");
    let fds = std::fs::read_dir(format!("/proc/{}/fd", process.pid())).unwrap().filter_map(Result::ok);
    let links: Vec<_> = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    assert!(links.contains(&"/dev/null".into()) && !links.contains(&socket), "{links:?}");
}
