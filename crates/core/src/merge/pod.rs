//! The merge rules for one pod: computes its state from slices, pushes and probes.
//!
//! The numbers of the rules are those in ARCHITECTURE.md, "Three sources, one truth".

use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoint::EndpointLoad;
use crate::endpoint::{Conditions, PodRef, PodUid, SlicePort, Source, State};
use crate::merge::push::{Push, PushEvent, PushOrder, PushOutcome};
use crate::time::Moment;

/// The identity of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Pod(PodUid),
    /// An endpoint that was written by hand: only its address identifies it.
    Manual(IpAddr),
}

/// Everything that is known about one pod of one service.
#[derive(Debug)]
pub(super) struct Pod {
    /// Unique within one service and never reused, unlike the slab index.
    pub(super) number: u64,
    pub(super) key: Key,
    /// `None` for an endpoint that was written by hand.
    pub(super) id: Option<PodRef>,
    /// When any source first reported it. Decides which of two pods at one address is the newer one.
    pub(super) seen: Moment,
    /// Its requests in flight. Not shared with a pod that had its address before.
    pub(super) load: Arc<EndpointLoad>,
    /// Its conditions in the slices; `None` while no slice lists it.
    pub(super) listed: Option<Listed>,
    /// The newest push of its sidecar.
    pub(super) push: Option<Pushed>,
    /// A probe of ours has promoted it, and neither a slice nor a push has changed since.
    pub(super) probed: bool,
    /// Another incarnation has taken over its address. Final.
    pub(super) replaced: bool,
    /// The state that follows from all of the above. Cached, so that a change of one pod does not recompute the others.
    pub(super) verdict: Option<Verdict>,
    /// Its slice entries changed and must be combined again.
    pub(super) dirty: bool,
    /// The entries combined so far, while it is dirty.
    pub(super) gathered: Option<Conditions>,
}

/// What the slices report about a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    /// The conditions of all its entries, combined.
    pub(super) said: Conditions,
    /// A slice has called it ready at least once (rule 4).
    pub(super) ready_once: bool,
    /// A slice has called it terminating, which is final (rule 6).
    pub(super) terminating: bool,
}

/// The newest push of a pod.
#[derive(Debug, Clone)]
pub(super) struct Pushed {
    pub(super) order: PushOrder,
    pub(super) event: PushEvent,
    /// The end of the lease; `None` once it has expired. The order is kept longer: otherwise a delayed older push would
    /// count as new.
    pub(super) until: Option<Moment>,
    /// Whether this boot has pushed `draining` (rule 6).
    pub(super) drained: bool,
    /// Whether the pod has ever pushed anything other than `draining`. If it has not, the `draining` is remembered, but the
    /// pod gets no requests (rule 6).
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
    /// The conditions after rule 6: once a slice has said `terminating`, an entry without it is stale, and so is its `ready`.
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

    /// Combines one slice entry of this pod with the others: `terminating` wins, then the better state. Entries without a pod
    /// have only their address in common, so for them the better state wins in any case.
    pub(super) fn gather(&mut self, entry: Conditions) {
        let identified = self.id.is_some();
        let rank = |said: Conditions| (identified && said.is_terminating(), said.state());
        if self.gathered.is_none_or(|so_far| rank(so_far) < rank(entry)) {
            self.gathered = Some(entry);
        }
    }

    /// Applies the combined slice entries. `terminated`: slices called the pod terminating before it was removed.
    pub(super) fn list(&mut self, said: Conditions, terminated: bool) {
        let before = self.listed;
        if before.is_some_and(|listed| listed.said == said) {
            return;
        }
        // The slice has changed: the promotion by a probe ends (rule 8).
        self.probed = false;
        self.listed = Some(Listed {
            said,
            ready_once: before.is_some_and(|listed| listed.ready_once) || said.is_ready(),
            // An endpoint without a pod has no UID that could be final.
            terminating: self.id.is_some()
                && (terminated || before.is_some_and(|listed| listed.terminating) || said.is_terminating()),
        });
    }

    /// Applies a push (rules 2, 3, 5 and 6). The caller has checked tombstones and replacement.
    pub(super) fn push(&mut self, push: Push, until: Moment) -> PushOutcome {
        let draining = push.event == PushEvent::Draining;
        let (mut drained, mut announced) = (draining, !draining);
        if let Some(last) = &mut self.push {
            if push.order == last.order {
                // A renewal of an expired push counts as a change, which ends a promotion (rule 8).
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
        // The push has changed: the promotion by a probe ends (rule 8).
        self.probed = false;
        PushOutcome::Accepted
    }

    /// The newest push event, while its lease runs.
    pub(super) fn word(&self) -> Option<PushEvent> {
        self.push.as_ref().filter(|push| push.until.is_some()).map(|push| push.event)
    }

    /// Whether this pod is an endpoint, in any state.
    pub(super) fn visible(&self) -> bool {
        let announced = self.word().is_some() && self.push.as_ref().is_some_and(|push| push.announced);
        !self.replaced && (self.listed.is_some() || announced)
    }

    /// Whether slices call it terminating.
    pub(super) fn terminating(&self) -> bool {
        self.listed.is_some_and(|listed| listed.terminating)
    }

    /// Computes the state from all sources again.
    pub(super) fn judge(&mut self) {
        let verdict = self.visible().then(|| self.weigh());
        // If two sources agree on `Ready`, the one that reported it first stays the source.
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
                // Once the slice is terminating too, it decides whether the pod still serves.
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
            // Unreachable, since only visible pods get here. A pod without any report must get no requests.
            (None, None) => Verdict::new(Conditions::new(false, false, true), Source::Slice),
        }
    }

    /// Rule 4: until a slice has said `ready` once, `push ready` outranks its "not ready".
    fn push_outranks(&self, slice: Conditions) -> bool {
        let ready_once = self.listed.is_some_and(|listed| listed.ready_once);
        !slice.is_ready() && !slice.is_terminating() && !ready_once
    }

    /// Whether `source` alone calls the pod ready.
    fn vouches(&self, source: Source) -> bool {
        match source {
            Source::Slice => self.listed.is_some_and(|listed| listed.conditions().is_ready()),
            Source::Push => self.word() == Some(PushEvent::Ready),
            Source::Probe => self.probed,
        }
    }
}
