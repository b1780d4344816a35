//! Runs every proxy under every load, interleaved by round so that noise affects all alike; disturbed runs are dropped.

pub(crate) mod report;
mod summary;

use std::time::Duration;

use serde::Serialize;

use crate::Result;
use crate::child::Running;
use crate::clock::{Stopwatch, rest};
use crate::load::{Handshakes, ListenerKind, ProxyAddress, Scenario, send};
use crate::proc::{self, busy_time, connections_opened, our_time, time_of};
use crate::rouse::Rouse;
use crate::stats::float;

pub(crate) use summary::{Cell, Rule, summarise};

/// The pause between runs, in which connections of the previous run close.
const BETWEEN: Duration = Duration::from_millis(300);

/// A running proxy: one row of the result.
#[derive(Debug)]
pub(crate) struct ProxyUnderTest {
    pub(crate) name: String,
    pub(crate) http1: Option<ProxyAddress>,
    pub(crate) h2c: Option<ProxyAddress>,
    pub(crate) tls: Option<ProxyAddress>,
    pub(crate) held: Held,
}

/// The processes of a proxy, ended when this is dropped.
#[derive(Debug)]
pub(crate) enum Held {
    Peer(Running),
    Rouse(Rouse),
}

impl ProxyUnderTest {
    /// The processes whose CPU time counts: all of a peer; of Rouse, itself and the guardians of its pods, not the pods.
    pub(crate) fn pids(&self) -> Vec<u32> {
        match &self.held {
            Held::Peer(running) => proc::tree(running.pid(), proc::ALL),
            Held::Rouse(rouse) => proc::tree(rouse.pid(), 1),
        }
    }

    fn address(&self, scenario: &Scenario) -> Option<&ProxyAddress> {
        match scenario.entrance {
            ListenerKind::Http1 => self.http1.as_ref(),
            ListenerKind::H2c => self.h2c.as_ref(),
            ListenerKind::Tls => self.tls.as_ref(),
        }
    }
}

/// What one run measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) round: u32,
    pub(crate) scenario: &'static str,
    pub(crate) proxy: String,
    /// CPU time of the proxy per request, in microseconds.
    pub(crate) cpu_us: f64,
    pub(crate) per_second: f64,
    pub(crate) failed: u32,
    /// The share of one core that other processes used meanwhile.
    pub(crate) foreign_share: f64,
    /// Connections that the whole machine opened meanwhile, including those of the load.
    pub(crate) connections: u64,
    pub(crate) handshakes: Option<Handshakes>,
}

/// All runs of all rounds.
pub(crate) fn run(proxies: &[ProxyUnderTest], scenarios: &[Scenario], rounds: u32) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for scenario in scenarios {
        let able: Vec<(&ProxyUnderTest, &ProxyAddress)> =
            proxies.iter().filter_map(|one| Some((one, one.address(scenario)?))).collect();
        for (proxy, address) in &able {
            // Warm up: otherwise the first run would pay for pools, caches and lazy initialisation.
            let warm = send(scenario.load, address, scenario.scaled(10).requests)?;
            if warm.succeeded == 0 {
                return Err(format!("{}: {} answers no request", scenario.name, proxy.name).into());
            }
        }
        for round in 0..rounds {
            eprintln!("{}: round {} of {rounds}", scenario.name, round + 1);
            for (proxy, address) in &able {
                runs.push(measure(proxy, address, scenario, round)?);
            }
        }
    }
    Ok(runs)
}

fn measure(proxy: &ProxyUnderTest, address: &ProxyAddress, scenario: &Scenario, round: u32) -> Result<Run> {
    rest(BETWEEN)?;
    if scenario.before > 0 {
        send(scenario.load, address, scenario.before)?;
    }
    let pids = proxy.pids();
    let opened = connections_opened()?;
    let (began, busy, ours, before) = (Stopwatch::start(), busy_time()?, our_time(), time_of(&pids));
    let outcome = send(scenario.load, address, scenario.requests)?;
    let spent = time_of(&pids).since(before);
    let foreign = busy_time()?.since(busy).without(our_time().since(ours));
    if outcome.failed > 0 {
        eprintln!("FAILED: {} requests of {} under {}", outcome.failed, proxy.name, scenario.name);
    }
    Ok(Run {
        round,
        scenario: scenario.name,
        proxy: proxy.name.clone(),
        cpu_us: spent.micros() / float(outcome.succeeded.max(1).into()),
        per_second: outcome.per_second,
        failed: outcome.failed,
        foreign_share: foreign.micros() / 1e6 / began.elapsed().as_secs_f64(),
        connections: connections_opened()?.saturating_sub(opened),
        handshakes: outcome.handshakes,
    })
}
