//! Records a run of the merge without a model: the facts that went in, and the views that came out.

use rouse_core::endpoint::{Conditions, PodUid, SliceEndpoint};
use rouse_core::merge::{EndpointMerge, MergePolicy, PushEvent, PushOutcome};
use rouse_core::snapshot::PortView;
use rouse_core::time::Moment;

use crate::model::claims_of;
use crate::world::{Fact, Outcome, PODS, Past, Step, endpoints, expire_until, tell, uid};

/// A ledger under a punctual driver, and everything it was told.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) ledger: EndpointMerge,
    pub(crate) past: Past,
    pub(crate) now: Moment,
    pub(crate) view: Vec<PortView>,
    /// When each pod's push was last accepted or renewed.
    pub(crate) vouched: Vec<(PodUid, Moment)>,
    /// Pods that left all slices and have neither been listed nor accepted since.
    pub(crate) removed: Vec<PodUid>,
    /// Pods that a newer pod has replaced.
    pub(crate) replaced: Vec<PodUid>,
    /// Pods that were ever pushed, probed or terminating: other facts may override their slices.
    pub(crate) disputed: Vec<PodUid>,
}

impl Observer {
    pub(crate) fn new(policy: MergePolicy) -> Self {
        Self {
            ledger: EndpointMerge::new(policy),
            past: Past::default(),
            now: Moment::from_nanos(100),
            view: vec![],
            vouched: vec![],
            removed: vec![],
            replaced: vec![],
            disputed: vec![],
        }
    }

    /// Advances time and applies the step. Returns the fact and its outcome.
    pub(crate) fn step(&mut self, step: &Step) -> Option<(Fact, Outcome)> {
        self.now = self.now + step.after;
        expire_until(&mut self.ledger, self.now);
        self.view = self.ledger.view();
        let listed_before: Vec<PodUid> =
            PODS.iter().map(|name| uid(name)).filter(|uid| self.past.lists(uid)).collect();
        let fact = self.past.resolve(&step.op, self.now)?;
        self.dispute(&fact);
        let victims = self.victims(&fact);
        let (outcome, _) = tell(&mut self.ledger, fact.clone(), self.now);
        if outcome.as_ref().is_none_or(|outcome| *outcome == Ok(PushOutcome::Accepted)) {
            self.replaced.extend(victims);
        }
        if let (Fact::Push(push), Some(Ok(PushOutcome::Accepted | PushOutcome::Renewed))) = (&fact, &outcome)
        {
            self.vouched.retain(|(uid, _)| *uid != push.pod.uid);
            self.vouched.push((push.pod.uid.clone(), self.now));
            self.removed.retain(|uid| *uid != push.pod.uid);
        }
        self.removed.retain(|uid| !self.past.lists(uid));
        self.removed.extend(listed_before.into_iter().filter(|uid| !self.past.lists(uid)));
        self.view = self.ledger.view();
        Some((fact, outcome))
    }

    /// The pods that the fact must replace if it is accepted: those at the address of a new pod.
    fn victims(&self, fact: &Fact) -> Vec<PodUid> {
        let unknown = |uid: &PodUid| self.ledger.first_seen(uid).is_none();
        let (addresses, by) = match fact {
            Fact::Displace(addresses, by, seen) if *seen == self.now => (addresses.clone(), by),
            Fact::Push(push)
                if push.event != PushEvent::Draining && push.owns_addresses && unknown(&push.pod.uid) =>
            {
                (claims_of(push), &push.pod.uid)
            }
            _ => return vec![],
        };
        let there = endpoints(&self.view)
            .filter(|(_, endpoint)| endpoint.addresses.iter().any(|address| addresses.contains(address)));
        let pods = there.filter_map(|(_, endpoint)| Some(endpoint.pod.as_ref()?.uid.clone()));
        pods.filter(|uid| uid != by).collect()
    }

    /// Records the pods that the fact makes disputed.
    fn dispute(&mut self, fact: &Fact) {
        match fact {
            Fact::Push(push) => self.disputed.push(push.pod.uid.clone()),
            Fact::Passed(uid) => self.disputed.push(uid.clone()),
            _ => {}
        }
        let terminating = |uid: &PodUid| self.past.entries(uid).any(Conditions::is_terminating);
        self.disputed.extend(PODS.map(uid).into_iter().filter(terminating));
    }
}

/// Whether two entries are about the same pod, or the same manual endpoint.
pub(crate) fn same_owner(one: &SliceEndpoint, other: &SliceEndpoint) -> bool {
    match (&one.pod, &other.pod) {
        (Some(one), Some(other)) => one.uid == other.uid,
        (None, None) => one.ip == other.ip,
        _ => false,
    }
}
