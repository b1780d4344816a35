//! Load balancing: power of two choices by requests in flight; takes a slot without a lock.
//!
//! The order of preference is `Ready`, `Draining`, ejected `Ready`, ejected `Draining`. The first of these tiers with an
//! endpoint that has not refused the request is used, even if all its slots are taken. A limit is never exceeded.

use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointId, SlotLimit};
use crate::random::Random;
use crate::snapshot::PortView;
use crate::time::Clock;

/// Why no endpoint was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickError {
    /// No endpoint takes new requests.
    NoEndpoint,
    /// Every endpoint that takes new requests is at its limit.
    AtLimit,
    /// Every endpoint that takes new requests has refused this request before.
    AllRefused,
}

/// Chooses an endpoint and takes a slot on it. `seed` is a fresh random number; `refused` are the endpoints that have
/// refused this request.
pub fn pick<'v>(
    view: &'v PortView,
    capacity: SlotLimit,
    refused: &[EndpointId],
    seed: u64,
    clock: &dyn Clock,
) -> Result<&'v Arc<Endpoint>, PickError> {
    let mut random = Random::new(seed);
    let tier = if view.ready().is_empty() { view.draining() } else { view.ready() };
    if let (&[], Some((first, second))) = (refused, two_of(view, tier, &mut random)) {
        let good = |one: &Endpoint| one.load.free(capacity) && !one.health.ejected(clock);
        let less = if second.load.in_flight() < first.load.in_flight() { second } else { first };
        // Only if both can take the request. If one cannot, the search compares the other with a third.
        if good(first) && good(second) && less.load.take(capacity) {
            return Ok(less);
        }
    }
    search(view, capacity, refused, &mut random, clock)
}

/// Two random endpoints of a tier; the same one twice if there is only one.
fn two_of<'v>(
    view: &'v PortView,
    tier: &[u32],
    random: &mut Random,
) -> Option<(&'v Arc<Endpoint>, &'v Arc<Endpoint>)> {
    let at = |place: usize| view.endpoints().get(usize::try_from(*tier.get(place)?).ok()?);
    match tier.len() {
        0 => None,
        1 => at(0).map(|only| (only, only)),
        n => {
            let first = random.below(n);
            let second = (first + 1 + random.below(n - 1)) % n;
            Some((at(first)?, at(second)?))
        }
    }
}

/// The slow path, for when one of the two random endpoints is full, ejected or excluded: looks at all endpoints.
fn search<'v>(
    view: &'v PortView,
    capacity: SlotLimit,
    refused: &[EndpointId],
    random: &mut Random,
    clock: &dyn Clock,
) -> Result<&'v Arc<Endpoint>, PickError> {
    let mut outcome = PickError::NoEndpoint;
    // Ejected endpoints come last, but are still used: otherwise ejecting all of them would be an outage of our own making.
    for ejected in [false, true] {
        for tier in [view.ready(), view.draining()] {
            let members = || {
                let endpoints = tier.iter().filter_map(|&at| view.endpoints().get(usize::try_from(at).ok()?));
                endpoints.filter(|endpoint| endpoint.health.ejected(clock) == ejected)
            };
            let candidates = || members().filter(|endpoint| !refused.iter().any(|id| endpoint.is(id)));
            if members().next().is_none() {
                continue;
            }
            if candidates().next().is_none() {
                outcome = PickError::AllRefused;
                continue;
            }
            // Use this tier even if it is full: a request waits for a `Ready` endpoint rather than use a `Draining` one.
            while let Some(endpoint) = less_loaded(candidates().filter(|one| one.load.free(capacity)), random)
            {
                // Another thread may have taken the last slot meanwhile: look again. Each failed attempt means that another
                // request got a slot, so the loop ends.
                if endpoint.load.take(capacity) {
                    return Ok(endpoint);
                }
            }
            return Err(PickError::AtLimit);
        }
    }
    Err(outcome)
}

/// The less loaded of two random candidates, in one pass.
fn less_loaded<'v>(
    candidates: impl Iterator<Item = &'v Arc<Endpoint>>,
    random: &mut Random,
) -> Option<&'v Arc<Endpoint>> {
    let mut pair: [Option<&Arc<Endpoint>>; 2] = [None, None];
    for (seen, candidate) in candidates.enumerate() {
        match pair {
            [None, _] => pair[0] = Some(candidate),
            [_, None] => pair[1] = Some(candidate),
            // The n-th candidate takes each of the two places with probability 1/n, so all pairs are equally likely.
            [Some(_), Some(_)] => {
                if let Some(place) = pair.get_mut(random.below(seen + 1)) {
                    *place = Some(candidate);
                }
            }
        }
    }
    // `min_by_key` returns the first of two equals, so the order must be random.
    pair.rotate_left(random.below(2));
    pair.into_iter().flatten().min_by_key(|endpoint| endpoint.load.in_flight())
}
