//! Starts and ends a `rouse` process that serves: what `rouse up` and `rouse gateway` have in common.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::admin::Admin;
use crate::output::Output;
use crate::wait::{eventually, within};

/// A process that listens.
pub(crate) struct Daemon {
    pub(crate) address: SocketAddr,
    pub(crate) admin: Admin,
    pub(crate) output: Output,
    pub(crate) pid: u32,
    pub(crate) child: Child,
}

impl Daemon {
    /// Starts it and waits until it listens. `name` is for messages.
    pub(crate) async fn start(mut command: Command, name: &str) -> Self {
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let pid = child.id().unwrap_or_else(|| panic!("{name} has no process"));
        let output = Output::of(&mut child);
        let (address, admin) = addresses(&output, &mut child).await;
        Self { address, admin: Admin::at(admin), output, pid, child }
    }
}

/// Waits for the end of a process and of its output. Returns the exit code; `None` if a signal ended it.
pub(crate) async fn ended(child: &mut Child, output: &mut Output, name: &str) -> Option<i32> {
    let status = within(&format!("{name} to end"), child.wait()).await;
    output.complete().await;
    status.unwrap_or_else(|error| panic!("cannot wait for {name}: {error}")).code()
}

/// The addresses that it prints. If it ends instead, panics with its output.
async fn addresses(output: &Output, child: &mut Child) -> (SocketAddr, SocketAddr) {
    let _shown = Shown(output);
    let found = |prefix: &str| {
        output.lines().iter().find_map(|line| {
            // In a gateway's log, the line begins with time, level and target.
            let (_, rest) = line.split_once(prefix)?;
            rest.strip_prefix("http://")?.trim_end_matches('/').parse().ok()
        })
    };
    eventually("rouse to listen", async || {
        if let Ok(Some(status)) = child.try_wait() {
            panic!("rouse ended with {status} instead of listening:\n{}", output.lines().join("\n"));
        }
        Some((found("listening on ")?, found("admin on ")?))
    })
    .await
}

/// Prints the output if the wait panics.
struct Shown<'o>(&'o Output);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.show_if_panicking("rouse");
    }
}
