//! The way out: requests first, then the apps; a second signal is the short way.

use std::time::Duration;

use tokio::time::timeout;

use super::lines;
use super::system::System;
use crate::args::Up;
use crate::failure::Failure;
use crate::process::drain::{self, Leaver, Patience};
use crate::process::screen::Screen;
use crate::process::signals::Signals;

/// How long threads and processes may take that have been told to end at once.
const AT_ONCE: Duration = Duration::from_secs(5);

/// How long a terminal may take to show the last lines of the apps.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Why we leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// A signal.
    Asked,
    /// Something ended that must not.
    Broken(String),
}

/// Leaves in good order. All pods are gone when it returns.
pub(super) async fn leave(
    up: &Up,
    reason: Reason,
    mut system: System,
    signals: &mut Signals,
    screen: &Screen,
) -> Result<(), Failure> {
    if let Reason::Broken(what) = &reason {
        screen.say(lines::error(&format!("{what}: stopping")));
    }
    let patience = Patience { delay: up.shutdown_delay, timeout: up.drain_timeout };
    let System { clock, registry, gateway, ready, workers, .. } = &mut system;
    let who = Leaver { clock: *clock, registry, gateway, ready };
    let left = drain::leave(who, patience, workers, signals, screen).await;
    let hurried = left.hurried | stop_apps(&system, signals, screen, left.hurried).await;
    system.outputs.finish(LAST_LINES).await;
    timeout(AT_ONCE, system.workers.ended()).await.ok();
    timeout(AT_ONCE, system.close_admin()).await.ok();
    match (reason, hurried) {
        (Reason::Broken(what), _) => Err(Failure::Failed(format!("{what}; start it again with `rouse up`"))),
        (Reason::Asked, true) => Err(Failure::Failed("stopped at once by a second signal".to_owned())),
        (Reason::Asked, false) => {
            drain::farewell(left, patience, screen);
            Ok(())
        }
    }
}

/// Stops all pods. Answers whether a second signal hurried it.
async fn stop_apps(system: &System, signals: &mut Signals, screen: &Screen, hurried: bool) -> bool {
    let engine = &system.engine;
    if hurried {
        engine.stop_now();
        timeout(AT_ONCE, engine.stop()).await.ok();
        return true;
    }
    let pods: usize = engine.apps().iter().map(|app| app.pods.len()).sum();
    if pods > 0 {
        let pods = if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
        screen.say(format!("stopping {pods}; press Ctrl-C again to stop at once"));
    }
    tokio::select! {
        // Bounded by the longest stop-grace, after which the engine kills.
        () = engine.stop() => false,
        () = signals.leave() => {
            engine.stop_now();
            timeout(AT_ONCE, engine.stop()).await.ok();
            true
        }
    }
}
