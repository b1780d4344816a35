//! Generates small random worlds with many collisions, and runs the ledger and the model side by side in them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use rouse_core::endpoint::{Conditions, Endpoint, PodRef, PodUid, PortName, Slice, SliceEndpoint, SlicePort};
use rouse_core::merge::{
    AddressChanges, BootId, EndpointMerge, MergePolicy, Push, PushEvent, PushOrder, PushOutcome, PushRefused,
};
use rouse_core::probe::{ProbePlan, ProbeSpec};
use rouse_core::snapshot::PortView;
use rouse_core::time::Moment;

use crate::model::{Model, Seen, View, Who};

/// So short that random steps of a few nanoseconds often end exactly at its expiry.
pub(crate) const LEASE: Duration = Duration::from_nanos(8);

pub(crate) const PODS: [&str; 4] = ["a", "b", "c", "d"];
const SLICES: [&str; 3] = ["one", "two", "three"];

/// Something that happens.
#[derive(Clone)]
pub(crate) enum Op {
    Put(&'static str, Slice),
    /// The n-th slice there is, with other conditions for its m-th endpoint.
    Touch(usize, usize, Conditions),
    Drop(&'static str),
    Replace(Vec<(&'static str, Slice)>),
    /// The n-th slice ever written is written again: a stale watch.
    Reappear(usize),
    Push(Push),
    /// The n-th push is repeated, whatever its outcome was.
    Repeat(usize),
    /// In another service, this pod, first seen this long ago, was verified at these addresses.
    Displace(Vec<SocketAddr>, PodUid, Duration),
    Passed(PodUid),
    Failed(PodUid),
    Expire,
}

/// One op, and the time that passes before it.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) after: Duration,
    /// The driver's timer fires for everything that falls due until then, each at its moment.
    pub(crate) punctual: bool,
    pub(crate) op: Op,
}

/// One line per step: the derived form would fill a screen for each step of a failing case.
impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timer = if self.punctual { "" } else { " (no timer)" };
        write!(f, "after {:?}{timer}: {:?}", self.after, self.op)
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Put(name, slice) => write!(f, "put {name} {}", line(slice)),
            Op::Touch(n, m, to) => write!(f, "touch slice {n} endpoint {m} {}", letters(*to)),
            Op::Drop(name) => write!(f, "drop {name}"),
            Op::Replace(slices) => {
                write!(f, "replace all by")?;
                slices.iter().try_for_each(|(name, slice)| write!(f, " <{name} {}>", line(slice)))
            }
            Op::Reappear(n) => write!(f, "written slice {n} reappears"),
            Op::Push(Push {
                pod,
                order: PushOrder { boot, sequence },
                ips,
                owns_addresses,
                ports,
                event,
            }) => {
                let (boot, shared) = ((boot.started, boot.id), if *owns_addresses { "" } else { " shared" });
                write!(f, "push {} {boot:?} {sequence} {event:?} {ips:?}{shared} {}", pod.uid, numbers(ports))
            }
            Op::Repeat(n) => write!(f, "heard push {n} is repeated"),
            Op::Displace(at, by, ago) => write!(f, "displace {at:?} by {by}, seen {ago:?} ago"),
            Op::Passed(uid) => write!(f, "probe of {uid} passed"),
            Op::Failed(uid) => write!(f, "probe of {uid} failed"),
            Op::Expire => write!(f, "expire"),
        }
    }
}

fn line(slice: &Slice) -> String {
    let endpoints = slice.endpoints.iter().map(|SliceEndpoint { ip, conditions, pod }| {
        format!(" {}@{ip}={}", pod.as_ref().map_or("?", |pod| pod.uid.as_str()), letters(*conditions))
    });
    numbers(&slice.ports) + &endpoints.collect::<String>()
}

fn numbers(ports: &[SlicePort]) -> String {
    let ports: Vec<String> = ports.iter().map(|port| format!("{}:{}", port.name, port.number)).collect();
    format!("[{}]", ports.join(" "))
}

/// Ready, serving, terminating: `TF-` for true, false and absent.
fn letters(conditions: Conditions) -> String {
    let words = [conditions.ready, conditions.serving, conditions.terminating];
    words.map(|word| word.map_or('-', |word| if word { 'T' } else { 'F' })).iter().collect()
}

/// How big a random world is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) pods: usize,
    pub(crate) slices: usize,
    /// Every pod has an address of its own, so that no pod is ever replaced.
    pub(crate) own_addresses: bool,
    /// How often the driver is punctual, from 0 to 1.
    pub(crate) punctual: f64,
}

pub(crate) const SMALL: Size = Size { pods: 4, slices: 3, own_addresses: false, punctual: 0.7 };

pub(crate) fn uid(name: &str) -> PodUid {
    PodUid::new(name)
}

pub(crate) fn pod(name: &str) -> PodRef {
    PodRef { uid: uid(name), name: format!("shop/{name}").into() }
}

/// 10.0.0.1, 10.0.0.2 and so on; 6 is `fd00::6`, the other family.
pub(crate) fn ip(number: u8) -> IpAddr {
    match number {
        6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 6).into(),
        _ => Ipv4Addr::new(10, 0, 0, number).into(),
    }
}

pub(crate) fn port(name: &str, number: u16) -> SlicePort {
    SlicePort { name: PortName::new(name), number }
}

pub(crate) fn plan() -> ProbePlan {
    ProbePlan::new(&ProbeSpec::default(), 80, true).unwrap()
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let usual = [
        Conditions::new(true, true, false),
        Conditions::new(false, false, false),
        Conditions::new(false, true, true),
        Conditions::new(false, false, true),
    ];
    let word = || select(vec![None, Some(true), Some(false)]);
    let odd = (word(), word(), word()).prop_map(|(ready, serving, terminating)| Conditions {
        ready,
        serving,
        terminating,
    });
    prop_oneof![4 => select(usual.to_vec()), 1 => odd]
}

fn ports() -> impl Strategy<Value = Vec<SlicePort>> {
    let http = || port("http", 80);
    select(vec![
        vec![http()],
        vec![http()],
        vec![port("http", 81)],
        vec![http(), port("admin", 81)],
        vec![http(), port("admin", 80)],
        vec![port("admin", 81), port("http", 81)],
        vec![],
    ])
}

fn any_ip() -> impl Strategy<Value = u8> {
    select(vec![1, 2, 6])
}

impl Size {
    fn any_pod(self) -> impl Strategy<Value = usize> {
        0..self.pods
    }

    fn endpoint(self) -> impl Strategy<Value = SliceEndpoint> {
        // One in eight has no pod.
        let pod_number = prop_oneof![7 => self.any_pod().prop_map(Some), 1 => Just(None)];
        (pod_number, any_ip(), conditions()).prop_map(move |(number, at, conditions)| SliceEndpoint {
            ip: ip(if self.own_addresses { own(number.unwrap_or(PODS.len())) } else { at }),
            conditions,
            pod: number.map(|number| pod(PODS[number])),
        })
    }

    fn slice(self) -> impl Strategy<Value = Slice> {
        (ports(), prop::collection::vec(self.endpoint(), 0..4))
            .prop_map(|(ports, endpoints)| Slice { ports, endpoints })
    }

    fn push(self) -> impl Strategy<Value = Push> {
        let boot = select(vec![
            BootId { started: 1, id: 7 },
            BootId { started: 1, id: 9 },
            BootId { started: 2, id: 8 },
        ]);
        let event =
            select(vec![PushEvent::Ready, PushEvent::Ready, PushEvent::NotReady, PushEvent::Draining]);
        let ips = prop::collection::vec(any_ip(), 1..3);
        let owns_addresses = prop::bool::weighted(0.8);
        (self.any_pod(), boot, 0..5u64, ips, owns_addresses, ports(), event).prop_map(
            move |(number, boot, sequence, mut ips, owns_addresses, ports, event)| {
                ips.dedup();
                if self.own_addresses {
                    ips = vec![own(number)];
                }
                let ips = ips.into_iter().map(ip).collect();
                let order = PushOrder { boot, sequence };
                Push { pod: pod(PODS[number]), order, ips, owns_addresses, ports, event }
            },
        )
    }

    /// All the slices there are, in any order.
    pub(crate) fn relist(self) -> impl Strategy<Value = Vec<(&'static str, Slice)>> {
        let slices = prop::collection::vec(prop::option::of(self.slice()), self.slices);
        (slices, any::<bool>()).prop_map(|(slices, turned)| {
            let named = SLICES.into_iter().zip(slices).filter_map(|(name, slice)| Some((name, slice?)));
            if turned { named.rev().collect() } else { named.collect() }
        })
    }

    fn op(self) -> impl Strategy<Value = Op> {
        let name = || select(SLICES[..self.slices].to_vec());
        let some_pod = || self.any_pod().prop_map(|number| uid(PODS[number]));
        let displace = (any_ip(), select(vec![80, 81]), self.any_pod(), 0..12u64).prop_map(
            move |(at, number, by, ago)| {
                // With own addresses, only unknown pods are displaced.
                let at = if self.own_addresses { 99 } else { at };
                let by = uid(PODS[by]);
                Op::Displace(vec![SocketAddr::new(ip(at), number)], by, Duration::from_nanos(ago))
            },
        );
        prop_oneof![
            6 => (name(), self.slice()).prop_map(|(name, slice)| Op::Put(name, slice)),
            5 => (0..9usize, 0..9usize, conditions()).prop_map(|(n, m, to)| Op::Touch(n, m, to)),
            2 => name().prop_map(Op::Drop),
            2 => self.relist().prop_map(Op::Replace),
            1 => (0..9usize).prop_map(Op::Reappear),
            9 => self.push().prop_map(Op::Push),
            2 => (0..9usize).prop_map(Op::Repeat),
            1 => displace,
            4 => some_pod().prop_map(Op::Passed),
            1 => some_pod().prop_map(Op::Failed),
            1 => Just(Op::Expire),
        ]
    }

    pub(crate) fn step(self) -> impl Strategy<Value = Step> {
        let after = prop_oneof![3 => 1..3u64, 1 => 3..17u64].prop_map(Duration::from_nanos);
        (after, prop::bool::weighted(self.punctual), self.op()).prop_map(|(after, punctual, op)| Step {
            after,
            punctual,
            op,
        })
    }

    pub(crate) fn steps(self, most: usize) -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(self.step(), 1..=most)
    }
}

/// The address of a pod in a world where no two pods share one.
fn own(number: usize) -> u8 {
    u8::try_from(10 + number).unwrap()
}

pub(crate) fn policy() -> impl Strategy<Value = MergePolicy> {
    (any::<bool>(), prop_oneof![1 => 0..3usize, 2 => Just(100)]).prop_map(
        |(manual_endpoints, max_unlisted)| MergePolicy { lease: LEASE, manual_endpoints, max_unlisted },
    )
}

/// The outcome of an op: that of a push.
pub(crate) type Outcome = Option<Result<PushOutcome, PushRefused>>;

/// Resolves ops into facts: looks up their references to earlier slices and pushes.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Every slice ever written.
    written: Vec<(String, Slice)>,
    /// The slices there are.
    pub(crate) present: Vec<(String, Slice)>,
    heard: Vec<Push>,
}

/// An op with its references resolved.
#[derive(Debug, Clone)]
pub(crate) enum Fact {
    Put(String, Slice),
    Drop(String),
    Replace(Vec<(String, Slice)>),
    Push(Push),
    Displace(Vec<SocketAddr>, PodUid, Moment),
    Passed(PodUid),
    Failed(PodUid),
    Expire,
}

impl Past {
    /// The fact of an op; `None` if it refers to something that never existed.
    pub(crate) fn resolve(&mut self, op: &Op, now: Moment) -> Option<Fact> {
        let nth = |n: usize, of: usize| n.checked_rem(of);
        let fact = match op {
            Op::Put(name, slice) => Fact::Put((*name).into(), slice.clone()),
            Op::Touch(n, m, to) => {
                let (name, mut slice) = self.present.get(nth(*n, self.present.len())?)?.clone();
                let place = nth(*m, slice.endpoints.len())?;
                slice.endpoints[place].conditions = *to;
                Fact::Put(name, slice)
            }
            Op::Drop(name) => Fact::Drop((*name).into()),
            Op::Replace(slices) => {
                Fact::Replace(slices.iter().map(|(name, slice)| ((*name).into(), slice.clone())).collect())
            }
            Op::Reappear(n) => {
                let (name, slice) = self.written.get(nth(*n, self.written.len())?)?.clone();
                Fact::Put(name, slice)
            }
            Op::Push(push) => Fact::Push(push.clone()),
            Op::Repeat(n) => Fact::Push(self.heard.get(nth(*n, self.heard.len())?)?.clone()),
            Op::Displace(addresses, by, ago) => Fact::Displace(addresses.clone(), by.clone(), now - *ago),
            Op::Passed(uid) => Fact::Passed(uid.clone()),
            Op::Failed(uid) => Fact::Failed(uid.clone()),
            Op::Expire => Fact::Expire,
        };
        self.remember(&fact);
        Some(fact)
    }

    fn remember(&mut self, fact: &Fact) {
        match fact {
            Fact::Put(name, slice) => {
                self.present.retain(|(known, _)| known != name);
                self.present.push((name.clone(), slice.clone()));
                self.written.push((name.clone(), slice.clone()));
            }
            Fact::Drop(name) => self.present.retain(|(known, _)| known != name),
            Fact::Replace(slices) => {
                self.present.clone_from(slices);
                self.written.extend(slices.iter().cloned());
            }
            Fact::Push(push) => self.heard.push(push.clone()),
            _ => {}
        }
    }

    /// Whether a slice lists the pod now.
    pub(crate) fn lists(&self, uid: &PodUid) -> bool {
        self.entries(uid).next().is_some()
    }

    /// What the slices say of the pod now, entry by entry.
    pub(crate) fn entries(&self, uid: &PodUid) -> impl Iterator<Item = Conditions> {
        let entries = self.present.iter().flat_map(|(_, slice)| &slice.endpoints);
        entries
            .filter(move |entry| entry.pod.as_ref().is_some_and(|pod| pod.uid == *uid))
            .map(|entry| entry.conditions)
    }
}

/// Applies a fact to the ledger. Returns the outcome of a push, and whether the view may have changed.
pub(crate) fn tell(ledger: &mut EndpointMerge, fact: Fact, now: Moment) -> (Outcome, bool) {
    let changed = match fact {
        Fact::Put(name, slice) => ledger.put_slice(&name, slice, now),
        Fact::Drop(name) => ledger.drop_slice(&name, now),
        Fact::Replace(slices) => ledger.replace_slices(slices, now),
        Fact::Push(push) => match ledger.push(push, now) {
            Ok((outcome, changed)) => return (Some(Ok(outcome)), changed),
            Err(refused) => return (Some(Err(refused)), false),
        },
        Fact::Displace(addresses, by, seen) => ledger.replace_previous_pods(&addresses, &by, seen, now),
        Fact::Passed(uid) => ledger.probe_passed(&uid, &plan()),
        Fact::Failed(uid) => ledger.probe_failed(&uid),
        Fact::Expire => ledger.expire(now),
    };
    (None, changed)
}

fn tell_model(model: &mut Model, fact: Fact, now: Moment) -> Outcome {
    match fact {
        Fact::Put(name, slice) => model.put_slice(&name, slice, now),
        Fact::Drop(name) => model.drop_slice(&name, now),
        Fact::Replace(slices) => model.replace_slices(slices, now),
        Fact::Push(push) => return Some(model.push(&push, now)),
        Fact::Displace(addresses, by, seen) => model.replace_previous_pods(&addresses, &by, seen),
        Fact::Passed(uid) => model.probe_passed(&uid),
        Fact::Failed(uid) => model.probe_failed(&uid),
        Fact::Expire => model.expire(now),
    }
    None
}

/// The owner of the endpoint.
pub(crate) fn who(endpoint: &Endpoint) -> Who {
    match &endpoint.pod {
        Some(pod) => Who::Pod(pod.uid.clone()),
        None => Who::Manual(endpoint.addresses[0].ip()),
    }
}

/// Every endpoint in sight, with its port.
pub(crate) fn endpoints(view: &[PortView]) -> impl Iterator<Item = (&PortName, &Arc<Endpoint>)> {
    view.iter().flat_map(|port| port.endpoints().iter().map(move |endpoint| (port.name(), endpoint)))
}

/// What a punctual driver does until then.
pub(crate) fn expire_until(ledger: &mut EndpointMerge, until: Moment) {
    while let Some(due) = ledger.next_expiry().filter(|due| *due <= until) {
        ledger.expire(due);
        assert!(ledger.next_expiry() > Some(due) || ledger.next_expiry().is_none(), "the driver spins");
    }
}

/// The ledger's view in the model's terms.
pub(crate) fn seen(view: &[PortView]) -> View {
    let ports = view.iter().map(|port| {
        let endpoints = port.endpoints().iter().map(|endpoint| Seen {
            who: who(endpoint),
            addresses: endpoint.addresses.iter().copied().collect(),
            state: endpoint.state,
        });
        (port.name().clone(), endpoints.collect())
    });
    ports.filter(|(_, endpoints): &(_, Vec<Seen>)| !endpoints.is_empty()).collect()
}

/// The ledger and the model, with the same facts.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) ledger: EndpointMerge,
    model: Model,
    past: Past,
    now: Moment,
    /// What was seen at the last look, and whether the ledger has announced a change since.
    looked: View,
    /// The claimed addresses, as the changes say.
    claimed: BTreeSet<SocketAddr>,
    announced: bool,
}

impl World {
    pub(crate) fn new(policy: MergePolicy) -> Self {
        let ledger = EndpointMerge::new(policy.clone());
        let model = Model::new(policy);
        let (past, now) = (Past::default(), Moment::from_nanos(100));
        Self { ledger, model, past, now, looked: vec![], claimed: BTreeSet::new(), announced: false }
    }

    /// Advances time and applies the step.
    pub(crate) fn step(&mut self, step: &Step) -> Result<Outcome, TestCaseError> {
        self.pass(step.after, step.punctual)?;
        let Some(fact) = self.past.resolve(&step.op, self.now) else { return Ok(None) };
        let (real, changed) = tell(&mut self.ledger, fact.clone(), self.now);
        let model = tell_model(&mut self.model, fact, self.now);
        prop_assert_eq!(&real, &model, "ledger, then model, at {:?}", self.now);
        self.announced |= changed;
        Ok(real)
    }

    fn pass(&mut self, time: Duration, punctual: bool) -> Result<(), TestCaseError> {
        let to = self.now + time;
        while let Some(due) = self.ledger.next_expiry().filter(|due| punctual && *due <= to) {
            // An earlier step may have left it overdue; time does not go back.
            self.now = due.max(self.now);
            self.announced |= self.ledger.expire(self.now);
            self.model.expire(self.now);
            let next = self.ledger.next_expiry();
            prop_assert!(next.is_none_or(|next| next > self.now), "the driver spins at {:?}", self.now);
        }
        self.now = to;
        Ok(())
    }

    /// Compares everything that can be seen.
    pub(crate) fn look(&mut self) -> Result<Vec<PortView>, TestCaseError> {
        let ports = self.ledger.view();
        let AddressChanges { came, left } = self.ledger.take_address_changes();
        for address in left {
            prop_assert!(self.claimed.remove(&address), "{} left twice", address);
        }
        for address in came {
            prop_assert!(self.claimed.insert(address), "{} came twice", address);
        }
        let real = seen(&ports);
        prop_assert_eq!(&real, &self.model.view(), "ledger, then model, at {:?}", self.now);
        prop_assert_eq!(&real, &seen(&self.ledger.view()), "two looks, two views");
        prop_assert!(self.announced || real == self.looked, "a change was not announced: {:?}", real);
        (self.looked, self.announced) = (real, false);

        for endpoint in ports.iter().flat_map(PortView::endpoints) {
            prop_assert_eq!(endpoint.conditions.state(), endpoint.state, "{:?}", endpoint);
        }
        for name in PODS {
            let uid = uid(name);
            // A replaced pod is not asked for.
            if !self.model.replaced(&uid) {
                prop_assert_eq!(self.ledger.first_seen(&uid), self.model.first_seen(&uid), "{}", name);
            }
        }
        // More addresses are harmless: they only decide which new pods of other services are reported here.
        let claimed: BTreeSet<SocketAddr> = self.ledger.addresses().collect();
        prop_assert_eq!(&self.claimed, &claimed, "the changes, summed up, and the claims");
        prop_assert!(claimed.is_superset(&self.model.addresses()), "unclaimed: {:?}", claimed);
        Ok(ports)
    }

    /// The timer is never set later than the view changes by time alone.
    pub(crate) fn check_timer(&self) -> Result<(), TestCaseError> {
        let (timer, change) = (self.ledger.next_expiry(), self.model.changes_by_itself());
        let in_time = change.is_none_or(|change| timer.is_some_and(|timer| timer <= change));
        prop_assert!(in_time, "the timer is set to {:?}, but the view changes at {:?}", timer, change);
        Ok(())
    }
}
