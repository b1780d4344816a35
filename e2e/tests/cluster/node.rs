//! The node that `e2e/cluster` creates: freezes, ends and restarts its programs, and reads the API server's audit log.

use std::fs;
use std::path::{Path, PathBuf};

use rouse_e2e::command::{Ran, run};
use rouse_e2e::proc::{self, Process};
use rouse_e2e::wait::patiently;
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::Command;

use crate::cluster;

/// A node that `e2e/cluster` made. A trial that stops one of its programs must run [`alone`](crate::harness::Case::alone).
#[derive(Debug, Clone)]
pub(crate) struct Node {
    run: PathBuf,
}

impl Node {
    /// The node of the cluster under test, if `e2e/cluster` made it.
    pub(crate) fn here() -> Option<Self> {
        let run = cluster::named().ok()?.parent()?.to_owned();
        run.join(".rouse-cluster").exists().then_some(Self { run })
    }

    /// The node, for a trial that runs nowhere else.
    pub(crate) fn ours() -> Self {
        Self::here().expect("such a trial is marked on_our_node")
    }

    /// The node with this run folder.
    pub(crate) fn at(run: &Path) -> Self {
        Self { run: run.to_owned() }
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.run
    }

    /// Ends a program with a signal and waits until it is gone. The script `restart` starts it again.
    pub(crate) async fn end(&self, program: &str, signal: Signal) {
        let process = Process::of(self.pid(program)).expect("a process");
        proc::signal(process.pid, signal);
        patiently(&format!("{program} to end"), async || (!process.runs()).then_some(())).await;
    }

    /// The process of a program: `kube-proxy`, `kube-apiserver`, `kubelet`, `etcd`…
    fn pid(&self, program: &str) -> u32 {
        let record = fs::read_to_string(self.run.join("pids").join(program)).expect("a recorded program");
        record.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a process")
    }

    /// Suspends a program; it continues when the guard is dropped.
    pub(crate) fn freeze(&self, program: &str) -> Frozen {
        let pid = self.pid(program);
        proc::signal(pid, Signal::STOP);
        Frozen { pid }
    }

    /// Runs a script of `e2e/cluster`: `restart kube-apiserver 60`.
    pub(crate) async fn script(&self, name: &str, arguments: &[&str]) -> Ran {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster").join(name);
        let mut command = Command::new(script);
        command.args(arguments).env("ROUSE_CLUSTER", &self.run);
        run(command).await
    }

    /// The requests of a user so far, in order: entries of the audit log for completed requests and started watches.
    pub(crate) fn asked_by(&self, user: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.run.join("logs/audit.log")).expect("an audit log");
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.filter(|entry| entry["user"]["username"] == user).collect()
    }

    /// Waits until the audit log has an entry of this user that `is` accepts: it may be written after the response.
    pub(crate) async fn until_asked(
        &self,
        user: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        patiently(what, async || {
            let asked = self.asked_by(user);
            asked.iter().any(&is).then_some(asked)
        })
        .await
    }
}

/// Whether an entry of the audit log is a write to the scale of a workload.
pub(crate) fn is_scale_write(entry: &Value) -> bool {
    entry["objectRef"]["subresource"] == "scale" && entry["verb"] != "get"
}

/// A suspended program.
#[derive(Debug)]
pub(crate) struct Frozen {
    pid: u32,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        proc::signal(self.pid, Signal::CONT);
    }
}
