//! Choosing an endpoint and taking a slot on it, in one step and without a lock.
//!
//! The less loaded of two random endpoints, among the best ones there are: `Ready` before `Draining`, endpoints
//! that answered before endpoints that are ejected. A limit is never exceeded.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::health::Health;
use crate::snapshot::PortView;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::time::Clock;

/// What one pod carries now, on all its ports.
// Aligned, or the counters of neighbours would share a cache line and every pick would slow every other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Load {
    in_flight: AtomicU32,
    /// How many of those were held before, and have not been answered yet.
    released: AtomicU32,
}

/// How much one pod may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// Anything.
    Unlimited,
    /// At most this many requests at a time.
    PerPod(NonZeroU32),
    /// At most this many requests that came out of a hold, so that a herd does not kill the first pod.
    Herd(NonZeroU32),
}

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

/// One incarnation of an endpoint at its addresses, as a name for it.
#[derive(Debug, Clone)]
pub struct EndpointId(Arc<Health>);

impl PartialEq for EndpointId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for EndpointId {}

impl std::hash::Hash for EndpointId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Endpoint {
    /// The name of this incarnation: the same in every snapshot while its addresses stay the same, and never that of
    /// another pod.
    pub fn id(&self) -> EndpointId {
        EndpointId(Arc::clone(&self.health))
    }

    fn is(&self, id: &EndpointId) -> bool {
        Arc::ptr_eq(&self.health, &id.0)
    }
}

impl Load {
    /// Nothing in flight.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many slots are taken.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many slots are taken by requests that were held and are not answered yet.
    pub fn released(&self) -> u32 {
        self.released.load(Ordering::Relaxed)
    }

    fn free(&self, capacity: Capacity) -> bool {
        match capacity {
            Capacity::Unlimited => true,
            Capacity::PerPod(limit) => self.in_flight() < limit.get(),
            Capacity::Herd(herd) => self.released() < herd.get(),
        }
    }

    /// Takes a slot if there is one.
    pub(crate) fn take(&self, capacity: Capacity) -> bool {
        let below = |bound: NonZeroU32| move |taken: u32| (taken < bound.get()).then(|| taken + 1);
        match capacity {
            Capacity::Unlimited => {
                self.in_flight.fetch_add(1, Ordering::AcqRel);
                true
            }
            Capacity::PerPod(limit) => {
                self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, below(limit)).is_ok()
            }
            Capacity::Herd(herd) => {
                let taken =
                    self.released.fetch_update(Ordering::AcqRel, Ordering::Acquire, below(herd)).is_ok();
                if taken {
                    self.in_flight.fetch_add(1, Ordering::AcqRel);
                }
                taken
            }
        }
    }

    /// Gives back a slot.
    pub(crate) fn give(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// Gives back a place in the herd.
    pub(crate) fn give_released(&self) {
        self.released.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream of numbers from one random seed.
#[derive(Debug, Clone, Copy)]
struct Dice(u64);

impl Dice {
    /// splitmix64: short, and good enough to spread load.
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    fn below(&mut self, bound: usize) -> usize {
        // Multiply and shift: the upper half of the product is uniform enough, and it is below the bound.
        let product = u128::from(self.roll()) * bound as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }
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
    let mut dice = Dice(seed);
    let tier = if view.ready().is_empty() { view.draining() } else { view.ready() };
    if let (&[], Some((first, second))) = (refused, two_of(view, tier, &mut dice)) {
        let good = |one: &Endpoint| one.load.free(capacity) && !one.health.ejected(clock);
        let less = if second.load.in_flight() < first.load.in_flight() { second } else { first };
        // Two of those that can take it, or the search: with one full of two, a third may be the better one.
        if good(first) && good(second) && less.load.take(capacity) {
            return Ok(less);
        }
    }
    search(view, capacity, refused, &mut dice, clock)
}

/// Two random endpoints of a tier; the same one twice if there is only one.
fn two_of<'v>(
    view: &'v PortView,
    tier: &[u32],
    dice: &mut Dice,
) -> Option<(&'v Arc<Endpoint>, &'v Arc<Endpoint>)> {
    let at = |place: usize| view.endpoints().get(usize::try_from(*tier.get(place)?).ok()?);
    match tier.len() {
        0 => None,
        1 => at(0).map(|only| (only, only)),
        n => {
            let first = dice.below(n);
            let second = (first + 1 + dice.below(n - 1)) % n;
            Some((at(first)?, at(second)?))
        }
    }
}

/// The careful way, when the quick one met an endpoint that is full, ejected or refused: looks at all of them.
fn search<'v>(
    view: &'v PortView,
    capacity: Capacity,
    refused: &[EndpointId],
    dice: &mut Dice,
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
            while let Some(endpoint) = less_loaded(candidates().filter(|one| one.load.free(capacity)), dice) {
                // Another thread may have taken the last slot meanwhile: look again, somebody has progressed.
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
    dice: &mut Dice,
) -> Option<&'v Arc<Endpoint>> {
    let mut pair: [Option<&Arc<Endpoint>>; 2] = [None, None];
    for (seen, candidate) in candidates.enumerate() {
        match pair {
            [None, _] => pair[0] = Some(candidate),
            [_, None] => pair[1] = Some(candidate),
            // The n-th candidate takes each of the two places with a chance of 1/n: all pairs are alike.
            [Some(_), Some(_)] => {
                if let Some(place) = pair.get_mut(dice.below(seen + 1)) {
                    *place = Some(candidate);
                }
            }
        }
    }
    // Of equals the first is taken, so which one that is must be left to chance.
    pair.rotate_left(dice.below(2));
    pair.into_iter().flatten().min_by_key(|endpoint| endpoint.load.in_flight())
}
