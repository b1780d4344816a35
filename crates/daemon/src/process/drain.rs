//! Drains a data plane: reports not ready but still accepts requests, then accepts none and waits for those under way. A second
//! signal stops it at once.

use std::time::Duration;

use rouse_core::registry::Registry;
use rouse_core::shutdown::{Shutdown, ShutdownPhase};
use rouse_core::time::Clock as _;
use rouse_net::clock::TokioClock;
use rouse_proxy::listen::{Gateway, Workers};
use tokio::time::timeout;

use super::console::Console;
use super::ready::Ready;
use super::signals::Signals;
use rouse_config::duration::HumanDuration;

/// A drain that takes no longer than this is not announced.
const SOON: Duration = Duration::from_millis(100);
/// How long held requests may take to receive their error.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The most services that the message names.
const NAMED: usize = 5;

/// How long a drain may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainTimes {
    /// How long to keep accepting requests.
    pub(crate) delay: HumanDuration,
    /// How long requests under way may take after that.
    pub(crate) timeout: HumanDuration,
}

/// The parts of the data plane that a drain uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) clock: TokioClock,
    pub(crate) registry: &'a Registry,
    pub(crate) gateway: &'a Gateway,
    pub(crate) ready: &'a Ready,
}

/// How a drain ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainOutcome {
    /// True if a second signal came.
    pub(crate) forced: bool,
    /// The number of requests that were cut off.
    pub(crate) cut: usize,
}

/// Lets requests under way finish, answers held requests with an error, and cuts off the rest.
pub(crate) async fn drain(
    parts: Parts<'_>,
    times: DrainTimes,
    workers: &mut Workers,
    signals: &mut Signals,
    console: &Console,
) -> DrainOutcome {
    let forced = wait(parts, times, workers, signals, console).await;
    let under_way = parts.gateway.under_way();
    parts.registry.shut_down();
    if !forced {
        timeout(LAST_WORDS, under_way.idle()).await.ok();
    }
    let cut = under_way.count();
    workers.close();
    if !forced {
        // Clients of upgraded connections get a close frame before their pods stop.
        timeout(LAST_WORDS, workers.ended()).await.ok();
    }
    DrainOutcome { forced, cut }
}

/// Lets requests under way finish. Returns true if a second signal came.
async fn wait(
    parts: Parts<'_>,
    times: DrainTimes,
    workers: &Workers,
    signals: &mut Signals,
    console: &Console,
) -> bool {
    let (clock, under_way) = (parts.clock, parts.gateway.under_way());
    let mut shutdown = Shutdown::new(times.delay.get(), times.timeout.get());
    shutdown.signal(clock.now());
    parts.ready.set(false);
    parts.gateway.leave();
    let (mut draining, mut forced, mut announced) = (false, false, false);
    loop {
        // Until the listeners close, new requests may come: no request under way does not end the drain yet.
        let count = if draining { under_way.count() } else { usize::MAX };
        match shutdown.advance(clock.now(), count) {
            ShutdownPhase::Serving => shutdown.signal(clock.now()),
            ShutdownPhase::NotReady { until } => {
                if !announced {
                    announced = true;
                    let delay = times.delay;
                    console.say(format!(
                        "not ready any more; still serving for {delay} (press Ctrl-C again to stop at once)"
                    ));
                }
                tokio::select! {
                    () = clock.sleep_until(until) => continue,
                    () = signals.leave() => { forced = true; shutdown.signal(clock.now()) }
                }
            }
            ShutdownPhase::Draining { until } if !draining => {
                draining = true;
                workers.drain();
                let now = clock.now();
                tokio::select! {
                    () = under_way.idle() => {}
                    () = clock.sleep_until(until.min(now + SOON)) => {}
                    () = signals.leave() => { forced = true; shutdown.signal(clock.now()); }
                }
                if under_way.count() > 0 && !forced {
                    console.say(waiting(under_way.count(), parts.registry, times.timeout));
                }
                continue;
            }
            ShutdownPhase::Draining { until } => tokio::select! {
                () = under_way.idle() => continue,
                () = clock.sleep_until(until) => continue,
                () = signals.leave() => { forced = true; shutdown.signal(clock.now()) }
            },
            ShutdownPhase::Stopped { .. } => return forced,
        };
    }
}

/// The message with the number of requests under way and their services.
fn waiting(count: usize, registry: &Registry, timeout: HumanDuration) -> String {
    let mut services = registry.services();
    services.retain(|service| service.in_flight() > 0 || service.holds() > 0);
    let more = services.len().saturating_sub(NAMED);
    let mut names: Vec<String> =
        services.iter().take(NAMED).map(|service| service.id().to_string()).collect();
    names.sort();
    names.extend((more > 0).then(|| format!("{more} more")));
    let services_text = if names.is_empty() { String::new() } else { format!(" for {}", names.join(", ")) };
    format!(
        "draining: {} under way{services_text} (open WebSockets and streams count), at most {timeout}; press Ctrl-C again to \
         stop at once",
        requests(count)
    )
}

fn requests(count: usize) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{count} requests") }
}

/// Reports how a drain ended.
pub(crate) fn report(drained: DrainOutcome, times: DrainTimes, console: &Console) {
    if drained.cut > 0 {
        let (timeout, cut) = (times.timeout, requests(drained.cut));
        console.say(format!("cut off after {timeout}: {cut}; raise --drain-timeout to let them finish"));
    }
    console.say("stopped");
}
