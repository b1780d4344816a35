//! Starts, signals and stops a `rouse sidecar` process in front of an app.

use std::fmt::Display;
use std::net::SocketAddr;
use std::process::Stdio;

use rustix::process::Signal;
use tokio::process::{Child, Command};

use crate::Programs;
use crate::admin::Admin;
use crate::daemon::{self, Daemon};
use crate::output::Output;
use crate::proc;
use crate::target::Target;
use crate::wait::eventually;

/// A running `rouse sidecar`.
#[derive(Debug)]
pub struct Sidecar {
    /// Where requests go.
    pub target: Target,
    /// Its admin address.
    pub admin: Admin,
    /// What it printed.
    pub output: Output,
    /// Its process.
    pub pid: u32,
    child: Child,
}

impl Sidecar {
    /// Starts it in front of `app`, without push, on free ports, and waits until it listens.
    pub async fn start(programs: &Programs, app: SocketAddr, flags: &[(&str, &dyn Display)]) -> Self {
        let mut command = Command::new(&programs.rouse);
        command.args(["sidecar", "--register", "none", "--listen", "127.0.0.1:0", "--app", &app.to_string()]);
        if !flags.iter().any(|(flag, _)| *flag == "--admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        for (flag, value) in flags {
            command.arg(flag).arg(value.to_string());
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        let Daemon { address, admin, output, pid, child } = Daemon::start(command, "the sidecar").await;
        let target = Target { address, host: "app.localhost".to_owned(), gateway: None };
        Self { target, admin, output, pid, child }
    }

    /// Waits until `/healthz` has this status.
    pub async fn health(&self, status: u16) {
        eventually(&format!("/healthz to be {status}"), async || {
            (self.admin.get("/healthz").await.status == status).then_some(())
        })
        .await;
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        proc::signal(self.pid, signal);
    }

    /// Waits for its end. Returns the exit code; `None` if a signal ended it.
    pub async fn ended(&mut self) -> Option<i32> {
        daemon::ended(&mut self.child, &mut self.output, "the sidecar").await
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.output.show_if_panicking("the sidecar");
    }
}
