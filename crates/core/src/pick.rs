//! Choosing an endpoint and taking a slot on it, in one step and without a lock.
//!
//! The less loaded of two random endpoints, among the best ones there are: `Ready` before `Draining`, endpoints
//! that answered before endpoints that are ejected. A limit is never exceeded.

use std::sync::Arc;

use crate::endpoint::{Capacity, Endpoint, EndpointId};
use crate::random::Random;
use crate::snapshot::PortView;
use crate::time::Clock;

/// Why no endpoint was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPick {
    /// No endpoint takes new requests.
    Nothing,
    /// The endpoints that take new requests have all they may have.
    Full,
    /// Every endpoint that takes new requests has refused this very request.
    Refused,
}

/// Chooses an endpoint and takes a slot on it. `seed` is fresh randomness; `refused` are the endpoints that this
/// request was refused by.
pub fn pick<'v>(
    view: &'v PortView,
    capacity: Capacity,
    refused: &[EndpointId],
    seed: u64,
    clock: &dyn Clock,
) -> Result<&'v Arc<Endpoint>, NoPick> {
    let mut random = Random::new(seed);
    let tier = if view.ready().is_empty() { view.draining() } else { view.ready() };
    if let (&[], Some((first, second))) = (refused, two_of(view, tier, &mut random)) {
        let good = |one: &Endpoint| one.load.free(capacity) && !one.health.ejected(clock);
        let less = if second.load.in_flight() < first.load.in_flight() { second } else { first };
        // Two of those that can take it, or the search: with one full of two, a third may be the better one.
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

/// The careful way, when the quick one met an endpoint that is full, ejected or refused: looks at all of them.
fn search<'v>(
    view: &'v PortView,
    capacity: Capacity,
    refused: &[EndpointId],
    random: &mut Random,
    clock: &dyn Clock,
) -> Result<&'v Arc<Endpoint>, NoPick> {
    let mut outcome = NoPick::Nothing;
    // Ejected endpoints come last, but they come: better a doubtful one than a self-made outage.
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
                outcome = NoPick::Refused;
                continue;
            }
            // This is the tier to use, full or not: a `Ready` endpoint at its limit still counts.
            while let Some(endpoint) = less_loaded(candidates().filter(|one| one.load.free(capacity)), random)
            {
                // Another thread may have taken the last slot meanwhile: look again. Each failed attempt means that another request got a slot, so the loop ends.
                if endpoint.load.take(capacity) {
                    return Ok(endpoint);
                }
            }
            return Err(NoPick::Full);
        }
    }
    Err(outcome)
}

/// The less loaded of two random ones, in one pass.
fn less_loaded<'v>(
    candidates: impl Iterator<Item = &'v Arc<Endpoint>>,
    random: &mut Random,
) -> Option<&'v Arc<Endpoint>> {
    let mut pair: [Option<&Arc<Endpoint>>; 2] = [None, None];
    for (seen, candidate) in candidates.enumerate() {
        match pair {
            [None, _] => pair[0] = Some(candidate),
            [_, None] => pair[1] = Some(candidate),
            // The n-th candidate takes each of the two places with a chance of 1/n: all pairs are alike.
            [Some(_), Some(_)] => {
                if let Some(place) = pair.get_mut(random.below(seen + 1)) {
                    *place = Some(candidate);
                }
            }
        }
    }
    // Of equals the first is taken, so which one that is must be left to chance.
    pair.rotate_left(random.below(2));
    pair.into_iter().flatten().min_by_key(|endpoint| endpoint.load.in_flight())
}
