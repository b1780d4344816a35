//! Limits the rate of registrations and new connections, per source and in total. Failed requests have a lower limit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use rouse_core::budget::{Rate, TokenBucket};
use rouse_core::time::Moment;
use rouse_net::fair_limiter::network;

use super::known_senders::{KnownSenders, SenderId};

/// How many registrations are accepted for checking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistrationRates {
    /// From all sources.
    pub total: Rate,
    /// From one source. A node may hide many pods behind one address.
    pub source: Rate,
    /// Refused ones from one source. After these, all its registrations are refused for a while, before any cryptography.
    pub failures: Rate,
    /// From one known sender of a source that is over a limit.
    pub known: Rate,
    /// From all known senders whose source, or the total, is over a limit: a reserve that other requests do not use up.
    pub known_total: Rate,
    /// New connections from all sources. Each may cost a TLS handshake.
    pub connections: Rate,
    /// New connections from one source.
    pub source_connections: Rate,
}

impl Default for RegistrationRates {
    fn default() -> Self {
        Self {
            total: Rate { per_second: 5_000, burst: 20_000 },
            // The pods of a large node renew 13 times a second.
            source: Rate { per_second: 100, burst: 2_000 },
            failures: Rate { per_second: 5, burst: 100 },
            known: Rate { per_second: 2, burst: 20 },
            known_total: Rate { per_second: 2_000, burst: 5_000 },
            connections: Rate { per_second: 1_000, burst: 20_000 },
            source_connections: Rate { per_second: 50, burst: 500 },
        }
    }
}

/// The most sources with buckets of their own. The others share one.
const SOURCES: usize = 16_384;
/// The `Retry-After` of a source over its limit.
pub(super) const WAIT: Duration = Duration::from_secs(1);

/// The buckets of all sources.
#[derive(Debug)]
pub(super) struct RateLimits {
    rates: RegistrationRates,
    total: TokenBucket,
    known_total: TokenBucket,
    connections: TokenBucket,
    sources: HashMap<IpAddr, SourceBuckets>,
    /// For sources beyond [`SOURCES`].
    others: SourceBuckets,
    known: KnownSenders,
}

#[derive(Debug)]
struct SourceBuckets {
    requests: TokenBucket,
    failures: TokenBucket,
    connections: TokenBucket,
}

impl SourceBuckets {
    fn new(rates: &RegistrationRates, now: Moment) -> Self {
        Self {
            requests: TokenBucket::new(rates.source, now),
            failures: TokenBucket::new(rates.failures, now),
            connections: TokenBucket::new(rates.source_connections, now),
        }
    }

    fn full(&mut self, now: Moment) -> bool {
        self.requests.full(now) && self.failures.full(now) && self.connections.full(now)
    }
}

impl RateLimits {
    pub(super) fn new(rates: RegistrationRates, now: Moment) -> Self {
        Self {
            total: TokenBucket::new(rates.total, now),
            known_total: TokenBucket::new(rates.known_total, now),
            connections: TokenBucket::new(rates.connections, now),
            others: SourceBuckets::new(&rates, now),
            known: KnownSenders::new(rates.known),
            sources: HashMap::new(),
            rates,
        }
    }

    /// Takes one new connection of `peer`. Returns false if there are too many.
    pub(super) fn connect(&mut self, peer: IpAddr, now: Moment) -> bool {
        // The total comes last: connections that their own source may not make do not use it up.
        self.source(peer, now).connections.try_take(now) && self.connections.try_take(now)
    }

    /// Takes one request of `peer`. Returns false if it sends too many. The request is charged as a failure until
    /// [`RateLimits::succeeded`] refunds it: otherwise requests that are decided at the same time would all pass.
    pub(super) fn admit(&mut self, peer: IpAddr, now: Moment) -> bool {
        let source = self.source(peer, now);
        if !source.failures.has(now) || !source.requests.has(now) {
            return false;
        }
        source.requests.take();
        // The total comes last: requests that their own source may not send do not use it up.
        if !self.total.try_take(now) {
            return false;
        }
        self.source(peer, now).failures.take();
        true
    }

    /// Takes one request that names `sender`, whose source is over a limit. Returns false if it is not known, or sends too many.
    pub(super) fn admit_known(&mut self, sender: &SenderId, now: Moment) -> bool {
        self.known.admit(sender, now) && self.known_total.try_take(now)
    }

    /// A registration of `sender` was accepted.
    pub(super) fn accepted(&mut self, sender: SenderId, now: Moment) {
        self.known.accepted(sender, now);
    }

    /// A request of `peer` that was admitted is no failure.
    pub(super) fn succeeded(&mut self, peer: IpAddr, now: Moment) {
        self.source(peer, now).failures.give_back();
    }

    /// Counts a failure of `peer` beside the requests that were admitted.
    pub(super) fn failed(&mut self, peer: IpAddr, now: Moment) {
        self.source(peer, now).failures.try_take(now);
    }

    fn source(&mut self, peer: IpAddr, now: Moment) -> &mut SourceBuckets {
        let key = network(peer);
        if self.sources.len() >= SOURCES && !self.sources.contains_key(&key) {
            // A full bucket equals a new one.
            self.sources.retain(|_, buckets| !buckets.full(now));
            if self.sources.len() >= SOURCES {
                return &mut self.others;
            }
        }
        self.sources.entry(key).or_insert_with(|| SourceBuckets::new(&self.rates, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: RegistrationRates = RegistrationRates {
        total: Rate { per_second: 10, burst: 100 },
        source: Rate { per_second: 2, burst: 10 },
        failures: Rate { per_second: 1, burst: 3 },
        known: Rate { per_second: 1, burst: 2 },
        known_total: Rate { per_second: 1, burst: 3 },
        connections: Rate { per_second: 10, burst: 20 },
        source_connections: Rate { per_second: 2, burst: 8 },
    };

    /// How many of `count` requests at the same time are admitted.
    fn admitted(limits: &mut RateLimits, peer: &str, count: usize, now: Moment) -> usize {
        (0..count).filter(|_| limits.admit(peer.parse().unwrap(), now)).count()
    }

    /// How many of `count` requests, one after another, succeed.
    fn served(limits: &mut RateLimits, peer: &str, count: usize, now: Moment) -> usize {
        let peer = peer.parse().unwrap();
        let served = |_: &usize| {
            let admitted = limits.admit(peer, now);
            if admitted {
                limits.succeeded(peer, now);
            }
            admitted
        };
        (0..count).filter(served).count()
    }

    #[test]
    fn one_source_does_not_use_up_the_requests_of_another() {
        let mut limits = RateLimits::new(RATES, Moment::ZERO);
        assert_eq!(served(&mut limits, "10.0.0.1", 1000, Moment::ZERO), 10);
        assert_eq!(served(&mut limits, "10.0.0.2", 10, Moment::ZERO), 10);
        assert_eq!(served(&mut limits, "10.0.0.1", 1000, Moment::from_secs(1)), 2);
    }

    #[test]
    fn a_request_counts_as_refused_until_it_has_succeeded() {
        let mut limits = RateLimits::new(RATES, Moment::ZERO);
        assert_eq!(admitted(&mut limits, "10.0.0.1", 1000, Moment::ZERO), 3, "at the same time");
        let peer = "10.0.0.1".parse().unwrap();
        (0..2).for_each(|_| limits.succeeded(peer, Moment::ZERO));
        assert_eq!(admitted(&mut limits, "10.0.0.1", 1000, Moment::ZERO), 2);
    }

    #[test]
    fn a_source_whose_requests_fail_is_refused_before_they_are_checked() {
        let mut limits = RateLimits::new(RATES, Moment::ZERO);
        let peer = "10.0.0.1".parse().unwrap();
        (0..3).for_each(|_| limits.failed(peer, Moment::ZERO));
        assert_eq!(admitted(&mut limits, "10.0.0.1", 1, Moment::ZERO), 0);
        assert_eq!(admitted(&mut limits, "10.0.0.1", 1, Moment::from_secs(1)), 1);
    }

    #[test]
    fn all_sources_together_have_a_limit() {
        let mut limits = RateLimits::new(RATES, Moment::ZERO);
        let all: usize = (0..50).map(|n| served(&mut limits, &format!("10.0.1.{n}"), 10, Moment::ZERO)).sum();
        assert_eq!(all, 100);
    }

    #[test]
    fn requests_of_other_sources_do_not_use_up_those_of_known_senders() {
        let mut limits = RateLimits::new(RATES, Moment::ZERO);
        let sender = |n: u32| {
            let credential = rouse_net::auth::CredentialId::Key("one".into());
            SenderId { credential, peer: IpAddr::V4(n.into()), pod: rouse_core::endpoint::PodUid::new("uid") }
        };
        (1..5).for_each(|n| limits.accepted(sender(n), Moment::ZERO));
        let others: usize =
            (0..50).map(|n| served(&mut limits, &format!("10.0.1.{n}"), 10, Moment::ZERO)).sum();
        assert_eq!(others, 100);
        assert!(!limits.admit("10.0.0.1".parse().unwrap(), Moment::ZERO), "the total is used up");
        let known = |limits: &mut RateLimits, n| limits.admit_known(&sender(n), Moment::ZERO);
        assert_eq!(
            [1, 2, 3, 4].map(|n| known(&mut limits, n)),
            [true, true, true, false],
            "they have a total too"
        );
        assert!(!known(&mut limits, 9), "it was never accepted");
    }

    #[test]
    fn new_connections_are_limited_by_source_and_in_all() {
        let mut limits = RateLimits::new(RATES, Moment::ZERO);
        let mut connected =
            |peer: &str, now| (0..1000).filter(|_| limits.connect(peer.parse().unwrap(), now)).count();
        let counts = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|peer| connected(peer, Moment::ZERO));
        assert_eq!(counts, [8, 8, 4]);
        assert_eq!(connected("10.0.0.1", Moment::from_secs(1)), 2);
        assert_eq!(connected("10.0.0.4", Moment::from_secs(1)), 8);
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_source() {
        let mut limits = RateLimits::new(RATES, Moment::ZERO);
        let all: usize =
            (0..20).map(|n| served(&mut limits, &format!("2001:db8::{n:x}"), 1, Moment::ZERO)).sum();
        assert_eq!(all, 10);
        for other in ["2001:db8:0:1::1", "2001:db8:0:0:1::1"] {
            assert_eq!(served(&mut limits, other, 1, Moment::ZERO), 1, "{other}");
        }
    }

    #[test]
    fn sources_beyond_the_bound_share_one_bucket() {
        let rates = RegistrationRates { total: Rate { per_second: 1, burst: u32::MAX }, ..RATES };
        let mut limits = RateLimits::new(rates, Moment::ZERO);
        for n in 0..u32::try_from(SOURCES).unwrap() {
            assert!(limits.admit(IpAddr::V4((0x0a00_0000 + n).into()), Moment::ZERO));
        }
        let more: usize =
            (0..50).map(|n| served(&mut limits, &format!("192.0.2.{n}"), 1, Moment::ZERO)).sum();
        assert_eq!((more, limits.sources.len()), (10, SOURCES));
        // When their buckets are full again, they make room.
        assert_eq!(served(&mut limits, "192.0.2.60", 1, Moment::from_secs(60)), 1);
        assert_eq!(limits.sources.len(), 1);
    }
}
