//! The rules for one pod: what the three sources said of it, and the state that follows. The rules' numbers are those of the table in
//! ARCHITECTURE.md, "Three sources, one truth".

use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoint::EndpointLoad;
use crate::endpoint::{Conditions, PodRef, PodUid, SlicePort, Source, State};
use crate::merge::push::{Push, PushEvent, PushOrder, PushOutcome};
use crate::time::Moment;

/// What a pod is known by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Pod(PodUid),
    /// Made by hand: the address is all the identity there is.
    Manual(IpAddr),
}

/// Everything known of one pod of one service.
#[derive(Debug)]
pub(super) struct Pod {
    /// Given once, never again, within one ledger.
    pub(super) number: u64,
    pub(super) key: Key,
    /// `None` for an endpoint that was made by hand.
    pub(super) id: Option<PodRef>,
    /// When any source first named it. Tells which of two pods on one address is the newer.
    pub(super) seen: Moment,
    /// What it carries now. Not shared with a pod that had its address before.
    pub(super) load: Arc<EndpointLoad>,
    /// What the slices say now; `None` while no slice lists it.
    pub(super) listed: Option<Listed>,
    /// What its sidecar said last.
    pub(super) push: Option<Pushed>,
    /// Our own probe passed, and neither slice nor push has spoken since.
    pub(super) probed: bool,
    /// Another incarnation took its address over. Final.
    pub(super) replaced: bool,
    /// The verdict on all of the above, kept so that a change of one pod costs nothing for its neighbours.
    pub(super) verdict: Option<Verdict>,
    /// Its entries changed: what the slices say must be gathered again.
    pub(super) dirty: bool,
    /// What was gathered so far, while it is dirty.
    pub(super) gathered: Option<Conditions>,
}

/// What the slices say of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    /// All its entries, gathered into one.
    pub(super) said: Conditions,
    /// Some slice once called it ready (rule 4).
    pub(super) ready_once: bool,
    /// Some slice once called it terminating, which is final (rule 6).
    pub(super) terminating: bool,
}

/// What a sidecar said of its pod.
#[derive(Debug, Clone)]
pub(super) struct Pushed {
    pub(super) order: PushOrder,
    pub(super) event: PushEvent,
    /// Until when the word counts; `None` once it lapsed. The order is remembered beyond that, or a late
    /// push could revive what it had already ended.
    pub(super) until: Option<Moment>,
    /// Whether this boot has said `draining` (rule 6).
    pub(super) drained: bool,
    /// Whether the pod was ever said to be more than leaving: a `draining` out of nowhere is remembered, not
    /// routed to.
    pub(super) announced: bool,
    pub(super) ips: Vec<IpAddr>,
    pub(super) ports: Vec<SlicePort>,
}

/// The state of a pod, and the source of that state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) conditions: Conditions,
    pub(super) state: State,
    pub(super) source: Source,
}

impl Verdict {
    fn new(conditions: Conditions, source: Source) -> Self {
        Self { conditions, state: conditions.state(), source }
    }
}

impl Listed {
    /// The conditions with the latch of rule 6 applied: after one `terminating`, an entry that denies it is
    /// stale, and so is its `ready`.
    fn conditions(self) -> Conditions {
        if self.terminating && !self.said.is_terminating() {
            return Conditions::new(false, self.said.is_serving(), true);
        }
        self.said
    }
}

impl Pod {
    pub(super) fn new(number: u64, key: Key, id: Option<PodRef>, seen: Moment) -> Self {
        Self {
            number,
            key,
            id,
            seen,
            load: Arc::default(),
            listed: None,
            push: None,
            probed: false,
            replaced: false,
            verdict: None,
            dirty: false,
            gathered: None,
        }
    }

    /// Adds one slice entry of this pod to the others: terminating wins; else the better state. Entries without
    /// a pod share no more than an address, so for them the better state wins outright.
    pub(super) fn gather(&mut self, entry: Conditions) {
        let identified = self.id.is_some();
        let rank = |said: Conditions| (identified && said.is_terminating(), said.state());
        if self.gathered.is_none_or(|so_far| rank(so_far) < rank(entry)) {
            self.gathered = Some(entry);
        }
    }

    /// Takes in what the slices say now. `terminated`: an earlier listing of this pod ended in termination.
    pub(super) fn list(&mut self, said: Conditions, terminated: bool) {
        let before = self.listed;
        if before.is_some_and(|listed| listed.said == said) {
            return;
        }
        // The slice has spoken: a probe's promotion ends (rule 8).
        self.probed = false;
        self.listed = Some(Listed {
            said,
            ready_once: before.is_some_and(|listed| listed.ready_once) || said.is_ready(),
            // A hand-made endpoint has no identity to which anything could be final.
            terminating: self.id.is_some()
                && (terminated || before.is_some_and(|listed| listed.terminating) || said.is_terminating()),
        });
    }

    /// Takes in a push (rules 2, 3, 5 and 6). The caller has looked at tombstones and replacement.
    pub(super) fn push(&mut self, push: Push, until: Moment) -> PushOutcome {
        let draining = push.event == PushEvent::Draining;
        let (mut drained, mut announced) = (draining, !draining);
        if let Some(last) = &mut self.push {
            if push.order == last.order {
                // A word that had lapsed is spoken anew, and ends a promotion as any word does.
                self.probed &= last.until.is_some();
                last.until = Some(until);
                return PushOutcome::Renewed;
            }
            let over = last.drained && push.order.boot == last.order.boot;
            if push.order < last.order || (over && !draining) {
                return PushOutcome::Stale(Some(last.order));
            }
            drained |= over;
            announced |= last.announced;
        }
        self.push = Some(Pushed {
            order: push.order,
            event: push.event,
            until: Some(until),
            drained,
            announced,
            ips: push.ips,
            ports: push.ports,
        });
        // The push has spoken: a probe's promotion ends (rule 8).
        self.probed = false;
        PushOutcome::Accepted
    }

    /// What the sidecar says, while its lease runs.
    pub(super) fn word(&self) -> Option<PushEvent> {
        self.push.as_ref().filter(|push| push.until.is_some()).map(|push| push.event)
    }

    /// Whether this pod is an endpoint at all, in any state.
    pub(super) fn visible(&self) -> bool {
        let announced = self.word().is_some() && self.push.as_ref().is_some_and(|push| push.announced);
        !self.replaced && (self.listed.is_some() || announced)
    }

    /// Whether slices call it terminating.
    pub(super) fn terminating(&self) -> bool {
        self.listed.is_some_and(|listed| listed.terminating)
    }

    /// Weighs all sources anew.
    pub(super) fn judge(&mut self) {
        let verdict = self.visible().then(|| self.weigh());
        // Two sources that agree on `Ready`: the one that knew first keeps the credit.
        self.verdict = match (self.verdict, verdict) {
            (Some(old), Some(new)) if old.state == State::Ready && new.state == State::Ready => {
                Some(Verdict {
                    source: if self.vouches(old.source) { old.source } else { new.source },
                    ..new
                })
            }
            (_, new) => new,
        };
    }

    fn weigh(&self) -> Verdict {
        let slice = self.listed.map(Listed::conditions);
        let terminating = slice.is_some_and(Conditions::is_terminating);
        match (self.word(), slice) {
            (Some(PushEvent::NotReady), _) => {
                Verdict::new(Conditions::new(false, false, terminating), Source::Push)
            }
            (Some(PushEvent::Draining), slice) => {
                // Once the slice agrees that it leaves, the slice also knows whether it still serves.
                let serving = !terminating || slice.is_some_and(Conditions::is_serving);
                Verdict::new(Conditions::new(false, serving, true), Source::Push)
            }
            (Some(PushEvent::Ready), None) => Verdict::new(Conditions::new(true, true, false), Source::Push),
            (Some(PushEvent::Ready), Some(slice)) if self.push_outranks(slice) => {
                Verdict::new(Conditions::new(true, true, false), Source::Push)
            }
            (_, Some(slice)) if self.probed && slice.state() == State::Starting => {
                Verdict::new(Conditions::new(true, true, false), Source::Probe)
            }
            (_, Some(slice)) => Verdict::new(slice, Source::Slice),
            // Not reached while only visible pods are weighed; nothing known is nothing offered.
            (None, None) => Verdict::new(Conditions::new(false, false, true), Source::Slice),
        }
    }

    /// Rule 4: a slice lags behind a push until the slice has once said `ready`.
    fn push_outranks(&self, slice: Conditions) -> bool {
        let ready_once = self.listed.is_some_and(|listed| listed.ready_once);
        !slice.is_ready() && !slice.is_terminating() && !ready_once
    }

    /// Whether `source` calls the pod ready by itself.
    fn vouches(&self, source: Source) -> bool {
        match source {
            Source::Slice => self.listed.is_some_and(|listed| listed.conditions().is_ready()),
            Source::Push => self.word() == Some(PushEvent::Ready),
            Source::Probe => self.probed,
        }
    }
}
