//! Meters the load of one service or route by events: how many requests there are, and for how long.
//!
//! A request counts from the moment it asks for a slot until its slot is dropped, whether it is held or in flight. The
//! count and the time are one atomic number, so reading them needs no lock and a short request is never missed.

mod feed;
#[cfg(all(test, loom))]
mod models;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use feed::LoadFeed;

use crate::endpoint::ServiceId;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};
use crate::time::{Clock, Moment};

/// How many bits of the packed number count the requests that are present.
const COUNT_BITS: u32 = 22;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// The largest sum of times, in units. Sums are modulo this plus one: only differences of them are used.
const SUM: u64 = (1 << (64 - COUNT_BITS)) - 1;
/// The unit of time, in microseconds: short enough for a request, long enough that the difference of two readings fits into
/// the sum.
const UNIT: u64 = 100;

/// What a meter belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LoadKey {
    /// A service: all requests that ask for one of its pods.
    Service(ServiceId),
    /// A route, by its name: all requests that it takes.
    Route(Arc<str>),
}

impl fmt::Display for LoadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(id) => write!(f, "service {id}"),
            Self::Route(name) => write!(f, "route {name}"),
        }
    }
}

/// The meter of one service or route.
pub struct LoadMeter {
    key: LoadKey,
    /// The number of requests that are present, and the sum of the times at which requests began less the sum of those at
    /// which requests ended. One number, so that both are always of the same moment.
    packed: AtomicU64,
    /// How many requests there were so far.
    requests: AtomicU64,
    /// How many requests wait for a pod. The owner of the meter counts them.
    held: Arc<AtomicUsize>,
    clock: Arc<dyn Clock>,
    feed: Arc<LoadFeed>,
    /// Whether the feed lists the meter.
    listed: AtomicBool,
    total: Mutex<Total>,
}

/// The request time so far, at the last reading.
#[derive(Debug, Default)]
struct Total {
    units: u64,
    /// The same, modulo the largest sum, as read.
    read: u64,
}

/// A reading of a meter. The numbers since the start of the process: the difference of two readings is the load between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadSample {
    /// What it was read from.
    pub key: LoadKey,
    /// When it was read.
    pub at: Moment,
    /// Requests so far.
    pub requests: u64,
    /// The time of all requests so far, in sum: its growth per second is the concurrency.
    pub busy: Duration,
    /// Requests that are present, held or not.
    pub present: u32,
    /// Those of them that wait for a pod.
    pub held: u32,
}

impl LoadMeter {
    /// A meter without load. `held` is counted by the caller.
    pub(crate) fn new(
        key: LoadKey,
        held: Arc<AtomicUsize>,
        clock: Arc<dyn Clock>,
        feed: Arc<LoadFeed>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            packed: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            held,
            clock,
            feed,
            listed: AtomicBool::new(false),
            total: Mutex::default(),
        })
    }

    /// What it belongs to.
    pub fn key(&self) -> &LoadKey {
        &self.key
    }

    /// Counts a request until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> LoadGuard {
        self.packed.fetch_add(packed(self.clock.now()), Ordering::AcqRel);
        self.moved(1);
        LoadGuard { meter: Arc::clone(self) }
    }

    /// Counts a request that takes no time, such as one that is answered without a pod.
    pub fn count(self: &Arc<Self>) {
        self.moved(1);
    }

    /// Counts requests that passed by, as others report them: how many began since their last report, how many were present then,
    /// and how many are now. The caller bounds what is present: the meter counts to four million.
    pub fn count_reported(self: &Arc<Self>, began: u64, present_before: u32, present: u32) {
        let one = packed(self.clock.now());
        self.packed.fetch_add(one.wrapping_mul(present.into()), Ordering::AcqRel);
        self.packed.fetch_sub(one.wrapping_mul(present_before.into()), Ordering::AcqRel);
        // Also if none began: what was present before the first report must be listed.
        if began > 0 || present > 0 {
            self.moved(began);
        }
    }

    /// How many requests there were so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How many requests there are.
    pub fn present(&self) -> u32 {
        present(self.packed.load(Ordering::Acquire))
    }

    /// Reads the meter.
    pub fn sample(&self) -> LoadSample {
        let mut total = lock(&self.total);
        let packed = self.packed.load(Ordering::Acquire);
        // Afterwards: no request that counts may have begun later.
        let at = self.clock.now();
        let read = busy(packed, at);
        let grown = read.wrapping_sub(total.read) & SUM;
        // A request that ended between the two lines above has counted for a moment too long. Time never goes back.
        if grown <= SUM / 2 {
            total.units += grown;
            total.read = read;
        }
        let held = u32::try_from(self.held.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let present = present(packed);
        LoadSample {
            key: self.key.clone(),
            at,
            requests: self.requests(),
            busy: Duration::from_micros(total.units.saturating_mul(UNIT)),
            present,
            held: held.min(present),
        }
    }

    /// What it belongs to is gone: the feed forgets it, and never lists it again.
    pub fn retire(&self) {
        self.listed.store(true, Ordering::Release);
        self.feed.forget(self);
    }

    /// Requests have come: the feed must list the meter.
    fn moved(self: &Arc<Self>, requests: u64) {
        self.requests.fetch_add(requests, Ordering::AcqRel);
        // Either this thread sees that the feed does not list the meter any more, or the feed sees the request. Pairs with
        // the fence in `LoadMeter::rests`.
        crate::sync::fence();
        if !self.listed.load(Ordering::Relaxed) && !self.listed.swap(true, Ordering::AcqRel) {
            self.feed.list(Arc::clone(self));
        }
    }

    /// Stops the listing of the meter, unless a request has come since the `last` reading. Returns whether it did.
    fn rests(&self, last: &LoadSample) -> bool {
        let idle = |meter: &Self| meter.present() == 0 && meter.requests() == last.requests;
        self.listed.store(false, Ordering::Release);
        crate::sync::fence();
        // If a request came meanwhile, one of the two lists the meter: it, or this call.
        idle(self) || self.listed.swap(true, Ordering::AcqRel)
    }
}

impl fmt::Debug for LoadMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadMeter")
            .field("key", &self.key)
            .field("requests", &self.requests())
            .field("present", &self.present())
            .finish_non_exhaustive()
    }
}

/// One request that counts as load.
pub struct LoadGuard {
    meter: Arc<LoadMeter>,
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.meter.packed.fetch_sub(packed(self.meter.clock.now()), Ordering::AcqRel);
    }
}

impl fmt::Debug for LoadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadGuard").field(&self.meter.key).finish()
    }
}

/// One request that begins, or ends, at `now`.
fn packed(now: Moment) -> u64 {
    (units(now) << COUNT_BITS) | 1
}

fn present(packed: u64) -> u32 {
    u32::try_from(packed & COUNT).unwrap_or(u32::MAX)
}

/// The time of all requests until `now`, modulo the largest sum.
fn busy(packed: u64, now: Moment) -> u64 {
    u64::from(present(packed)).wrapping_mul(units(now)).wrapping_sub(packed >> COUNT_BITS) & SUM
}

fn units(moment: Moment) -> u64 {
    (moment.as_nanos() / (1000 * UNIT)) & SUM
}
