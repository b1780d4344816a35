//! The processes of one pod: the app, and its sidecar if it has one. The pod ends with the first of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::try_join;

use crate::command::SpawnError;
use crate::process::{Exit, Launcher, Process, Start};

/// How long the other process may take to end when one has ended by itself.
const OTHER_GRACE: Duration = Duration::from_secs(1);

/// The running processes of a pod.
#[derive(Debug)]
pub(super) struct PodProcesses {
    app: Process,
    sidecar: Option<Process>,
}

impl PodProcesses {
    /// Starts them side by side. If one cannot be started, the other is stopped.
    pub(super) async fn spawn(
        launcher: &Launcher,
        app: Start,
        sidecar: Option<Start>,
    ) -> Result<Arc<Self>, SpawnError> {
        let sidecar = async {
            match sidecar {
                Some(sidecar) => Process::spawn(launcher, sidecar).await.map(Some),
                None => Ok(None),
            }
        };
        let (app, sidecar) = try_join!(Process::spawn(launcher, app), sidecar)?;
        Ok(Arc::new(Self { app, sidecar }))
    }

    /// The process id of the app.
    pub(super) fn pid(&self) -> u32 {
        self.app.pid()
    }

    /// Orders all processes to stop. No request is in flight, so the app need not wait for its sidecar.
    pub(super) fn stop(&self, grace: Duration) {
        self.all().for_each(|process| process.stop(grace));
    }

    /// Waits until all processes are gone. Returns how the first one ended.
    pub(super) async fn exited(self: Arc<Self>) -> Exit {
        let Some(sidecar) = &self.sidecar else { return self.app.exited().await };
        let first = tokio::select! {
            exit = self.app.exited() => exit,
            exit = sidecar.exited() => exit,
        };
        self.stop(OTHER_GRACE);
        self.app.exited().await;
        sidecar.exited().await;
        first
    }

    fn all(&self) -> impl Iterator<Item = &Process> {
        [&self.app].into_iter().chain(&self.sidecar)
    }
}
