//! Leader election on one shared record, as a state machine without I/O: what was read and written, and the time, say what a
//! candidate does next and whether it may write.
//!
//! The record is an object that only a write based on its newest version changes. The clocks of candidates are never compared,
//! and the times in the record are only for people. A candidate takes the record over when it has seen no new version of it for
//! [`LeaseTiming::lease`] on its own clock. The holder counts from the moment at which it *began* its last successful
//! write, and for a shorter time, [`LeaseTiming::hold`]. Others saw the change later than that, so the holder has stopped before
//! another one begins, however long a request takes and however long a process stands still. The clock must go on while the
//! process is stopped.
//!
//! A record that is missing may have been deleted under a holder, which does not notice before it renews it. So the record is
//! created with the holder [`VACANT`], which is no candidate, and is taken over by the same rule as any other.

use std::sync::Arc;
use std::time::Duration;

use crate::time::Moment;

/// The holder of a record that was just created. It never renews it.
pub const VACANT: &str = "vacant";

/// How long the parts of an election take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTiming {
    /// How long a candidate sees no new version of the record before it takes it over.
    pub lease: Duration,
    /// How long the holder may write after it began its last successful write of the record. Shorter than `lease`: clocks may
    /// run at slightly different speeds, and what was sent just before the end takes time to arrive.
    pub hold: Duration,
    /// How often the holder renews the record.
    pub renew_every: Duration,
    /// How often other candidates read the record, and the pause after a request that failed.
    pub retry: Duration,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            hold: Duration::from_secs(10),
            renew_every: Duration::from_secs(5),
            retry: Duration::from_secs(2),
        }
    }
}

/// The record, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Who holds it; `None`: it was released.
    pub holder: Option<Arc<str>>,
    /// The `lease` of the holder's own timing.
    pub lease: Duration,
    /// How often the holder has changed.
    pub transitions: u32,
}

/// A record, and the version that a write is based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenLease {
    /// What it says.
    pub record: LeaseRecord,
    /// Its version.
    pub version: Arc<str>,
}

/// What a candidate does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    /// Nothing before this moment; `None`: nothing any more.
    Wait(Option<Moment>),
    /// Read the record, and call [`Election::observed`] or [`Election::failed`].
    Read,
    /// Write the record, and call [`Election::wrote`], [`Election::refused`], [`Election::gone`] or [`Election::failed`].
    Write(LeaseClaim),
}

/// A write of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseClaim {
    /// What is written.
    pub kind: ClaimKind,
    /// How often the holder has changed, with this write.
    pub transitions: u32,
    /// The version that the write is based on. `None`: the record must not exist.
    pub based_on: Option<Arc<str>>,
    /// When it began. A hold counts from here.
    pub began: Moment,
}

/// Why the record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimKind {
    /// There is no record: one with the holder [`VACANT`] is written.
    Create,
    /// It was released, or its holder has not renewed it.
    Acquire,
    /// The candidate holds it.
    Renew,
    /// The candidate gives it up: the next one need not wait.
    Release,
}

/// The record, as the candidate knows it.
#[derive(Debug, Clone)]
enum Known {
    /// It was not read yet.
    Nothing,
    /// There is none.
    Missing,
    /// It is at this version, and has been since then.
    Lease { lease: SeenLease, since: Moment },
}

/// One candidate.
#[derive(Debug, Clone)]
pub struct Election {
    me: Arc<str>,
    timing: LeaseTiming,
    known: Known,
    /// When the last successful write began, while the record is held.
    held_since: Option<Moment>,
    /// The record has changed, or may have: it is read before it is written.
    outdated: bool,
    /// Nothing is done before.
    pause: Moment,
    /// When the record was last read.
    read: Moment,
    released: bool,
}

impl Election {
    /// A candidate called `me`: a name that no other process has or had, or it would take an old record for its own.
    pub fn new(me: &str, timing: LeaseTiming) -> Self {
        Self {
            me: me.into(),
            timing,
            known: Known::Nothing,
            held_since: None,
            outdated: false,
            pause: Moment::ZERO,
            read: Moment::ZERO,
            released: false,
        }
    }

    /// Whether it leads: no other candidate can lead at `now`.
    pub fn may_write(&self, now: Moment) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// Until when it leads, unless it renews the record before; `None`: it does not.
    pub fn leads_until(&self) -> Option<Moment> {
        self.held_since.map(|since| since + self.timing.hold)
    }

    /// The holder of the record, as last read.
    pub fn holder(&self) -> Option<&Arc<str>> {
        match &self.known {
            Known::Lease { lease, .. } => lease.record.holder.as_ref(),
            Known::Nothing | Known::Missing => None,
        }
    }

    /// What to do at `now`.
    pub fn step(&self, now: Moment) -> LeaseStep {
        if self.released {
            return LeaseStep::Wait(None);
        }
        if now < self.pause {
            return LeaseStep::Wait(Some(self.pause));
        }
        if self.outdated {
            return LeaseStep::Read;
        }
        match &self.known {
            Known::Nothing => LeaseStep::Read,
            Known::Missing => LeaseStep::Write(self.claim(ClaimKind::Create, now)),
            Known::Lease { lease, .. } if self.holds(lease) => {
                LeaseStep::Write(self.claim(ClaimKind::Renew, now))
            }
            Known::Lease { lease, since } if now < self.expiry(lease, *since) => LeaseStep::Read,
            Known::Lease { .. } => LeaseStep::Write(self.claim(ClaimKind::Acquire, now)),
        }
    }

    /// The record was read at `now`, or there is none.
    pub fn observed(&mut self, now: Moment, seen: Option<SeenLease>) {
        (self.outdated, self.read) = (false, now);
        self.known = match (seen, &self.known) {
            (None, _) => Known::Missing,
            (Some(lease), Known::Lease { lease: before, since }) if lease == *before => {
                Known::Lease { lease, since: *since }
            }
            (Some(lease), _) => Known::Lease { lease, since: now },
        };
        if !matches!(&self.known, Known::Lease { lease, .. } if self.holds(lease)) {
            self.held_since = None;
        }
        self.pause = self.next(now);
    }

    /// A claim was written; this is the record now.
    pub fn wrote(&mut self, now: Moment, claim: &LeaseClaim, lease: SeenLease) {
        let held = !self.released && self.holds(&lease);
        self.held_since = held.then_some(claim.began);
        self.known = Known::Lease { lease, since: now };
        self.pause = self.next(now);
    }

    /// A claim was refused: the record had changed.
    pub fn refused(&mut self, now: Moment) {
        self.outdated = true;
        self.pause = now + self.breath();
    }

    /// A claim was refused: there is no record any more.
    pub fn gone(&mut self, now: Moment) {
        self.observed(now, None);
    }

    /// A request failed. A claim may have been written all the same: then the next one is refused, and the record is read.
    pub fn failed(&mut self, now: Moment) {
        self.pause = now + self.timing.retry;
    }

    /// The record may have changed: it is read soon. A candidate that leads sees only its own changes, and does nothing.
    pub fn changed(&mut self, now: Moment) {
        if !self.may_write(now) {
            self.outdated = true;
            self.pause = self.pause.min(self.read + self.breath());
        }
    }

    /// Gives the record up, and from now on does nothing more. Returns what to write, if it is held.
    pub fn release(&mut self, now: Moment) -> Option<LeaseClaim> {
        self.released = true;
        self.held_since = None;
        let held = matches!(&self.known, Known::Lease { lease, .. } if self.holds(lease));
        held.then(|| self.claim(ClaimKind::Release, now))
    }

    fn holds(&self, lease: &SeenLease) -> bool {
        lease.record.holder.as_ref() == Some(&self.me)
    }

    /// When the record may be taken over.
    fn expiry(&self, lease: &SeenLease, since: Moment) -> Moment {
        match lease.record.holder {
            None => since,
            // The longer of both: either candidate may have been started with other settings.
            Some(_) => since + lease.record.lease.max(self.timing.lease),
        }
    }

    /// When something is to be done next, after the record was read or written at `now`.
    fn next(&self, now: Moment) -> Moment {
        let poll = now + self.timing.retry;
        match (&self.known, self.held_since) {
            (Known::Lease { .. }, Some(since)) => since + self.timing.renew_every,
            // The answer to our last write was lost: renew it at once.
            (Known::Lease { lease, .. }, None) if self.holds(lease) => now,
            (Known::Lease { lease, since }, None) => poll.min(self.expiry(lease, *since)),
            (Known::Nothing | Known::Missing, _) => now,
        }
    }

    /// The least time between two reads, however often the record changes.
    fn breath(&self) -> Duration {
        self.timing.retry / 20
    }

    fn claim(&self, kind: ClaimKind, began: Moment) -> LeaseClaim {
        let (transitions, based_on) = match &self.known {
            Known::Nothing | Known::Missing => (0, None),
            Known::Lease { lease, .. } => (lease.record.transitions, Some(Arc::clone(&lease.version))),
        };
        let taken = u32::from(kind == ClaimKind::Acquire);
        LeaseClaim { kind, transitions: transitions.saturating_add(taken), based_on, began }
    }
}
