//! The way out: requests first, then the apps; a second signal is the short way.

use std::time::Duration;

use rouse_core::drain::{Phase, Shutdown};
use rouse_core::time::Clock as _;
use tokio::time::timeout;

use super::lines;
use super::screen::Screen;
use super::signals::Signals;
use super::system::System;
use crate::args::Up;
use crate::config::Span;
use crate::failure::Failure;

/// What takes no longer than this need not be announced.
const SOON: Duration = Duration::from_millis(100);
/// How long those who waited may take to hear that they waited in vain.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long threads and processes may take that have been told to end at once.
const AT_ONCE: Duration = Duration::from_secs(5);

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
    let hurried = drain(up, &system, signals, screen).await;
    system.registry.shut_down();
    if !hurried {
        timeout(LAST_WORDS, system.gateway.under_way().idle()).await.ok();
    }
    let cut = system.gateway.under_way().count();
    system.workers.close();
    if !hurried {
        // The pods behind upgraded connections must not go before their clients were told.
        timeout(LAST_WORDS, system.workers.ended()).await.ok();
    }
    let hurried = hurried | stop_apps(&system, signals, screen, hurried).await;
    timeout(AT_ONCE, system.workers.ended()).await.ok();
    timeout(AT_ONCE, system.close_admin()).await.ok();
    match (reason, hurried) {
        (Reason::Broken(what), _) => Err(Failure::Failed(format!("{what}; start it again with `rouse up`"))),
        (Reason::Asked, true) => Err(Failure::Failed("stopped at once by a second signal".to_owned())),
        (Reason::Asked, false) => {
            if cut > 0 {
                let (timeout, cut) = (up.drain_timeout, requests(cut));
                screen.say(format!("cut off after {timeout}: {cut}; --drain-timeout gives them longer"));
            }
            screen.say("stopped");
            Ok(())
        }
    }
}

/// Lets requests under way finish. Answers whether a second signal came.
async fn drain(up: &Up, system: &System, signals: &mut Signals, screen: &Screen) -> bool {
    let (clock, under_way) = (system.clock, system.gateway.under_way());
    let mut shutdown = Shutdown::new(up.shutdown_delay.get(), up.drain_timeout.get());
    shutdown.signal(clock.now());
    system.ready.set(false);
    let (mut draining, mut hurried, mut announced) = (false, false, false);
    loop {
        // Before the listeners are closed, nothing under way means nothing.
        let count = if draining { under_way.count() } else { usize::MAX };
        match shutdown.advance(clock.now(), count) {
            Phase::Serving => shutdown.signal(clock.now()),
            Phase::NotReady { until } => {
                if !announced {
                    announced = true;
                    let delay = up.shutdown_delay;
                    screen.say(format!(
                        "not ready any more; still serving for {delay} (Ctrl-C again: stop at once)"
                    ));
                }
                tokio::select! {
                    () = clock.sleep_until(until) => continue,
                    () = signals.leave() => { hurried = true; shutdown.signal(clock.now()) }
                }
            }
            Phase::Draining { until } if !draining => {
                draining = true;
                system.workers.drain();
                let now = clock.now();
                tokio::select! {
                    () = under_way.idle() => {}
                    () = clock.sleep_until(until.min(now + SOON)) => {}
                    () = signals.leave() => { hurried = true; shutdown.signal(clock.now()); }
                }
                if under_way.count() > 0 && !hurried {
                    screen.say(waiting(under_way.count(), up.drain_timeout));
                }
                continue;
            }
            Phase::Draining { until } => tokio::select! {
                () = under_way.idle() => continue,
                () = clock.sleep_until(until) => continue,
                () = signals.leave() => { hurried = true; shutdown.signal(clock.now()) }
            },
            Phase::Stopped { .. } => return hurried,
        };
    }
}

/// What is waited for.
fn waiting(count: usize, timeout: Span) -> String {
    format!("draining: {} under way, at most {timeout}; press Ctrl-C again to stop at once", requests(count))
}

fn requests(count: usize) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{count} requests") }
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
