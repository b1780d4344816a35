//! The way out of a data plane: not ready, still serving, then no more, until nothing is under way. A second signal is
//! the short way.

use std::time::Duration;

use rouse_core::drain::{Phase, Shutdown};
use rouse_core::registry::Registry;
use rouse_core::time::Clock as _;
use rouse_net::clock::TokioClock;
use rouse_proxy::gateway::Gateway;
use rouse_proxy::serve::Workers;
use tokio::time::timeout;

use super::screen::Screen;
use super::signals::Signals;
use crate::admin::Ready;
use crate::config::Span;

/// What takes no longer than this need not be announced.
const SOON: Duration = Duration::from_millis(100);
/// How long those who waited may take to hear that they waited in vain.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// So many services are named.
const NAMED: usize = 5;

/// How much time there is to leave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// How long to go on accepting.
    pub(crate) delay: Span,
    /// How long requests under way may take after that.
    pub(crate) timeout: Span,
}

/// Who leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaver<'a> {
    pub(crate) clock: TokioClock,
    pub(crate) registry: &'a Registry,
    pub(crate) gateway: &'a Gateway,
    pub(crate) ready: &'a Ready,
}

/// How it went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    /// A second signal came.
    pub(crate) hurried: bool,
    /// So many requests were cut off.
    pub(crate) cut: usize,
}

/// Lets requests under way finish, turns away who still waits, and cuts off the rest.
pub(crate) async fn leave(
    who: Leaver<'_>,
    patience: Patience,
    workers: &mut Workers,
    signals: &mut Signals,
    screen: &Screen,
) -> Left {
    let hurried = drain(who, patience, workers, signals, screen).await;
    let under_way = who.gateway.under_way();
    who.registry.shut_down();
    if !hurried {
        timeout(LAST_WORDS, under_way.idle()).await.ok();
    }
    let cut = under_way.count();
    workers.close();
    if !hurried {
        // The pods behind upgraded connections must not go before their clients were told.
        timeout(LAST_WORDS, workers.ended()).await.ok();
    }
    Left { hurried, cut }
}

/// Lets requests under way finish. Answers whether a second signal came.
async fn drain(
    who: Leaver<'_>,
    patience: Patience,
    workers: &Workers,
    signals: &mut Signals,
    screen: &Screen,
) -> bool {
    let (clock, under_way) = (who.clock, who.gateway.under_way());
    let mut shutdown = Shutdown::new(patience.delay.get(), patience.timeout.get());
    shutdown.signal(clock.now());
    who.ready.set(false);
    who.gateway.leave();
    let (mut draining, mut hurried, mut announced) = (false, false, false);
    loop {
        // Before the listeners are closed, nothing under way means nothing.
        let count = if draining { under_way.count() } else { usize::MAX };
        match shutdown.advance(clock.now(), count) {
            Phase::Serving => shutdown.signal(clock.now()),
            Phase::NotReady { until } => {
                if !announced {
                    announced = true;
                    let delay = patience.delay;
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
                workers.drain();
                let now = clock.now();
                tokio::select! {
                    () = under_way.idle() => {}
                    () = clock.sleep_until(until.min(now + SOON)) => {}
                    () = signals.leave() => { hurried = true; shutdown.signal(clock.now()); }
                }
                if under_way.count() > 0 && !hurried {
                    screen.say(waiting(under_way.count(), who.registry, patience.timeout));
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
fn waiting(count: usize, registry: &Registry, timeout: Span) -> String {
    let mut services = registry.services();
    services.retain(|service| service.in_flight() > 0 || service.holds() > 0);
    let more = services.len().saturating_sub(NAMED);
    let mut names: Vec<String> =
        services.iter().take(NAMED).map(|service| service.id().to_string()).collect();
    names.sort();
    names.extend((more > 0).then(|| format!("{more} more")));
    let whose = if names.is_empty() { String::new() } else { format!(" for {}", names.join(", ")) };
    format!(
        "draining: {} under way{whose} (open WebSockets and streams count), at most {timeout}; press Ctrl-C again to \
         stop at once",
        requests(count)
    )
}

fn requests(count: usize) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{count} requests") }
}

/// What is said at the end.
pub(crate) fn farewell(left: Left, patience: Patience, screen: &Screen) {
    if left.cut > 0 {
        let (timeout, cut) = (patience.timeout, requests(left.cut));
        screen.say(format!("cut off after {timeout}: {cut}; --drain-timeout gives them longer"));
    }
    screen.say("stopped");
}
