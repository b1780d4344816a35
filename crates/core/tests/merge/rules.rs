//! Tables for each merge rule: steps, and the resulting view.
//!
//! Every row runs against the ledger and the model. The numbers are those of the merge rules in the
//! specification of endpoints.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::{Conditions, Endpoint, Slice, SliceEndpoint};
use rouse_core::merge::{BootId, EndpointMerge, MergePolicy, Push, PushEvent, PushOrder, PushOutcome};
use rouse_core::snapshot::PortView;
use rouse_core::time::Moment;

use crate::world::{Op, Step, World, ip, pod, port, uid};
use PushEvent::{Draining, NotReady, Ready};

const LEASE: Duration = Duration::from_mins(1);
/// The time between two rows that do not say otherwise.
const TICK: Duration = Duration::from_nanos(1);
/// A tick short of a lease.
const ALMOST: Duration = Duration::from_nanos(60_000_000_000 - 1);

const READY: Conditions = Conditions::new(true, true, false);
const STARTING: Conditions = Conditions::new(false, false, false);
/// Ready only because `publishNotReadyAddresses` says so.
const PUBLISHED: Conditions = Conditions::new(true, true, true);
/// Not ready, still serving, and not terminating.
const FADING: Conditions = Conditions::new(false, true, false);
const LEAVING: Conditions = Conditions::new(false, true, true);
const GONE: Conditions = Conditions::new(false, false, true);
const SILENT: Conditions = Conditions { ready: None, serving: None, terminating: None };

/// A step, and the view after it: `port: pod@address State/source`. A push's outcome comes first, unless it was accepted.
/// An empty text is an empty view.
type Row = (Step, &'static str);

#[track_caller]
fn check(rows: impl IntoIterator<Item = Row>) {
    check_under(&MergePolicy { lease: LEASE, ..MergePolicy::default() }, rows);
}

#[track_caller]
fn check_under(policy: &MergePolicy, rows: impl IntoIterator<Item = Row>) {
    let mut world = World::new(policy.clone());
    for (number, (step, expected)) in rows.into_iter().enumerate() {
        let context = format!("row {}: {step:?}", number + 1);
        let outcome = world.step(&step).unwrap_or_else(|error| panic!("{context}: {error}"));
        let view = world.look().unwrap_or_else(|error| panic!("{context}: {error}"));
        world.check_timer().unwrap_or_else(|error| panic!("{context}: {error}"));
        let outcome = match outcome {
            None | Some(Ok(PushOutcome::Accepted)) => String::new(),
            Some(Ok(PushOutcome::Renewed)) => "renewed; ".into(),
            Some(Ok(PushOutcome::Stale(None))) => "stale; ".into(),
            Some(Ok(PushOutcome::Stale(Some(PushOrder { boot, sequence })))) => {
                format!("stale after {}.{sequence}; ", boot.started)
            }
            Some(Err(refused)) => format!("{refused:?}; "),
        };
        let seen = format!("{outcome}{}", shown(&view));
        assert_eq!(seen.trim_end_matches("; "), expected, "{context}");
    }
}

/// `http: a@10.0.0.1:80,[fd00::6]:80 Ready/slice, b@... | admin: ...`
fn shown(view: &[PortView]) -> String {
    let endpoint = |endpoint: &Endpoint| {
        let name = endpoint.pod.as_ref().map_or("?", |pod| pod.uid.as_str());
        let addresses: Vec<String> = endpoint.addresses.iter().map(ToString::to_string).collect();
        format!("{name}@{} {}/{}", addresses.join(","), endpoint.state, endpoint.source)
    };
    let ports = view.iter().filter(|port| !port.endpoints().is_empty()).map(|port| {
        let endpoints: Vec<String> = port.endpoints().iter().map(|it| endpoint(it)).collect();
        format!("{}: {}", port.name(), endpoints.join(", "))
    });
    ports.collect::<Vec<_>>().join(" | ")
}

fn then(op: Op) -> Step {
    Step { after: TICK, punctual: true, op }
}

/// The same step, this long after the one before it.
fn after(time: Duration, step: Step) -> Step {
    Step { after: time, ..step }
}

fn wait(time: Duration) -> Step {
    after(time, then(Op::Expire))
}

fn slice(ports: &[(&str, u16)], entries: &[(&str, u8, Conditions)]) -> Slice {
    let endpoints = entries.iter().map(|&(name, at, conditions)| SliceEndpoint {
        ip: ip(at),
        conditions,
        pod: (name != "?").then(|| pod(name)),
    });
    Slice {
        ports: ports.iter().map(|(name, number)| port(name, *number)).collect(),
        endpoints: endpoints.collect(),
    }
}

/// The slice is written, with `http` at 80. A pod called `?` is none.
fn put(name: &'static str, entries: &[(&str, u8, Conditions)]) -> Step {
    put_at(name, &[("http", 80)], entries)
}

fn put_at(name: &'static str, ports: &[(&str, u16)], entries: &[(&str, u8, Conditions)]) -> Step {
    then(Op::Put(name, slice(ports, entries)))
}

fn drop_slice(name: &'static str) -> Step {
    then(Op::Drop(name))
}

fn push_from(
    name: &str,
    boot: u64,
    sequence: u64,
    event: PushEvent,
    at: &[u8],
    ports: &[(&str, u16)],
) -> Step {
    let order = PushOrder { boot: BootId { started: boot, id: 0 }, sequence };
    let ips = at.iter().map(|at| ip(*at)).collect();
    let ports = ports.iter().map(|(name, number)| port(name, *number)).collect();
    then(Op::Push(Push { pod: pod(name), order, ips, owns_addresses: true, ports, event }))
}

/// The pod at 10.0.0.1 pushes, with `http` at 80.
fn push(name: &str, boot: u64, sequence: u64, event: PushEvent) -> Step {
    push_at(name, boot, sequence, event, 1)
}

fn push_at(name: &str, boot: u64, sequence: u64, event: PushEvent, at: u8) -> Step {
    push_from(name, boot, sequence, event, &[at], &[("http", 80)])
}

fn passed(name: &str) -> Step {
    then(Op::Passed(uid(name)))
}

fn failed(name: &str) -> Step {
    then(Op::Failed(uid(name)))
}

// Rule 1: identity.

#[test]
fn a_new_pod_on_an_old_address_replaces_the_old_one_at_once_and_for_good() {
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 7, Ready), "http: a@10.0.0.1:80 Ready/slice"),
        (push("b", 1, 0, NotReady), "http: b@10.0.0.1:80 Starting/push"),
        (push("a", 1, 8, Ready), "stale after 1.7; http: b@10.0.0.1:80 Starting/push"),
        // A stale slice, then a slice with both, then one without, then again, much later.
        (put("one", &[("a", 1, STARTING)]), "http: b@10.0.0.1:80 Starting/push"),
        (put("one", &[("a", 2, READY), ("b", 1, READY)]), "http: b@10.0.0.1:80 Starting/push"),
        (drop_slice("one"), ""),
        (wait(LEASE * 9), ""),
        (put("two", &[("a", 1, READY)]), ""),
        (push("a", 2, 0, Ready), "stale after 1.7"),
    ]);
}

#[test]
fn a_pod_on_the_network_of_its_node_replaces_no_pod_at_the_address_that_they_share() {
    let shared = |name, event, sequence| match push(name, 1, sequence, event) {
        Step { op: Op::Push(push), .. } => then(Op::Push(Push { owns_addresses: false, ..push })),
        step => step,
    };
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (shared("b", NotReady, 0), "http: a@10.0.0.1:80 Ready/slice"),
        (shared("b", Ready, 1), "http: a@10.0.0.1:80 Ready/slice"),
        (shared("a", Ready, 0), "http: a@10.0.0.1:80 Ready/slice"),
        // The address goes to the better pod, as between pods of slices, and back.
        (put("one", &[("a", 1, LEAVING)]), "http: b@10.0.0.1:80 Ready/push"),
        (shared("b", Draining, 2), "http: a@10.0.0.1:80 Draining/slice"),
    ]);
}

#[test]
fn neighbours_on_the_host_network_share_an_ip_lawfully() {
    check([
        (put_at("one", &[("http", 80)], &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (
            push_from("b", 1, 0, Ready, &[1], &[("http", 81)]),
            "http: a@10.0.0.1:80 Ready/slice, b@10.0.0.1:81 Ready/push",
        ),
    ]);
}

#[test]
fn the_older_of_two_pods_does_not_replace_the_newer() {
    check([
        (push("a", 1, 0, Ready), "http: a@10.0.0.1:80 Ready/push"),
        (put("one", &[("b", 2, READY)]), "http: b@10.0.0.2:80 Ready/slice, a@10.0.0.1:80 Ready/push"),
        // The newer one holds the address by its slice; the older one's late push changes nothing.
        (push_at("a", 1, 1, Ready, 2), "http: b@10.0.0.2:80 Ready/slice"),
        (push_at("b", 1, 0, Ready, 2), "http: b@10.0.0.2:80 Ready/slice"),
        (push_at("a", 1, 2, Ready, 1), "stale after 1.1; http: b@10.0.0.2:80 Ready/slice"),
    ]);
}

#[test]
fn a_draining_pod_replaces_no_other() {
    let both = "http: a@10.0.0.1:80 Ready/slice, b@10.0.0.2:80 Draining/slice";
    check([
        (put("one", &[("a", 1, READY), ("b", 2, LEAVING)]), both),
        (push_at("b", 1, 0, Ready, 1), both),
        (push_at("c", 1, 0, Draining, 1), both),
    ]);
}

#[test]
fn another_service_displaces_too() {
    let displace = |at: u8, number: u16, by: &str| {
        then(Op::Displace(vec![(ip(at), number).into()], uid(by), Duration::ZERO))
    };
    let shown = "http: a@10.0.0.1:80 Ready/slice, ?@10.0.0.2:80 Ready/slice";
    let policy = MergePolicy { lease: LEASE, manual_endpoints: true, ..MergePolicy::default() };
    let earlier = then(Op::Displace(vec![(ip(1), 80).into()], uid("b"), LEASE));
    check_under(
        &policy,
        [
            (put("one", &[("a", 1, READY), ("?", 2, READY)]), shown),
            (displace(1, 81, "b"), shown),
            (displace(1, 80, "a"), shown),
            // Displaced by an earlier pod, and an endpoint without a pod.
            (earlier, shown),
            (displace(2, 80, "b"), shown),
            (displace(1, 80, "b"), "http: ?@10.0.0.2:80 Ready/slice"),
            (put("two", &[("a", 1, READY)]), "http: ?@10.0.0.2:80 Ready/slice"),
        ],
    );
}

#[test]
fn a_new_pod_inherits_no_load_and_the_same_pod_keeps_its_own() {
    let mut ledger = EndpointMerge::new(MergePolicy::default());
    let mut now = Moment::ZERO;
    let mut load = |step: Step| {
        now = now + TICK;
        match step.op {
            Op::Put(name, slice) => _ = ledger.put_slice(name, slice, now),
            Op::Push(push) => _ = ledger.push(push, now).unwrap(),
            _ => unreachable!("only slices and pushes here"),
        }
        Arc::as_ptr(&ledger.view()[0].endpoints()[0].load)
    };
    let first = load(put("one", &[("a", 1, STARTING)]));
    assert_eq!(load(push("a", 1, 0, Ready)), first);
    assert_eq!(load(put("one", &[("a", 1, LEAVING)])), first);
    assert_eq!(load(put("one", &[("a", 2, LEAVING), ("b", 3, READY)])), first, "wherever it is reached");
    let second = load(put("one", &[("c", 2, READY)]));
    assert_ne!(second, first);
    assert_ne!(load(push_at("d", 1, 0, Ready, 2)), second);
}

#[test]
fn a_pod_is_the_same_endpoint_only_while_its_addresses_stay_the_same() {
    let mut ledger = EndpointMerge::new(MergePolicy::default());
    let mut now = Moment::ZERO;
    let mut id = |step: Step| {
        now = now + TICK;
        let Op::Put(name, slice) = step.op else { unreachable!("only slices here") };
        ledger.put_slice(name, slice, now);
        ledger.view()[0].endpoints()[0].id()
    };
    let first = id(put("one", &[("a", 1, READY)]));
    assert_eq!(id(put("one", &[("a", 1, LEAVING)])), first, "whatever its state");
    assert_eq!(id(put("one", &[("a", 1, READY), ("b", 3, READY)])), first, "another pod comes beside it");
    let both = id(put("two", &[("a", 4, READY)]));
    assert_ne!(both, first, "a second address");
    let other = id(put("one", &[("a", 2, READY)]));
    assert!(other != both && other != first, "another one");
    assert_ne!(id(put("two", &[])), other, "one less");
}

// Rule 2: order.

#[test]
fn newer_wins_equal_renews_and_older_is_stale() {
    let ready = "http: a@10.0.0.1:80 Ready/push";
    let starting = "http: a@10.0.0.1:80 Starting/push";
    check([
        (push("a", 1, 1, Ready), ready),
        (push("a", 1, 2, NotReady), starting),
        (push("a", 1, 1, Ready), "stale after 1.2; http: a@10.0.0.1:80 Starting/push"),
        // The first push with a sequence number counts; a repetition only renews the lease.
        (push("a", 1, 2, Ready), "renewed; http: a@10.0.0.1:80 Starting/push"),
        (push("a", 2, 0, Ready), ready),
        (push("a", 1, 9, NotReady), "stale after 2.0; http: a@10.0.0.1:80 Ready/push"),
    ]);
}

#[test]
fn the_order_outlives_the_lease_of_a_listed_pod() {
    let starting = "http: a@10.0.0.1:80 Starting/slice";
    check([
        (put("one", &[("a", 1, STARTING)]), starting),
        (push("a", 1, 5, Ready), "http: a@10.0.0.1:80 Ready/push"),
        (wait(LEASE), starting),
        (push("a", 1, 4, Ready), "stale after 1.5; http: a@10.0.0.1:80 Starting/slice"),
        (push("a", 1, 5, Ready), "renewed; http: a@10.0.0.1:80 Ready/push"),
    ]);
}

// Rule 3: the lease.

#[test]
fn a_pod_that_no_slice_lists_lives_exactly_as_long_as_its_lease() {
    let ready = "http: a@10.0.0.1:80 Ready/push";
    check([(push("a", 1, 3, Ready), ready), (wait(ALMOST), ready), (wait(TICK), "")]);
    check([
        (push("a", 1, 3, Ready), ready),
        (after(ALMOST, push("a", 1, 3, Ready)), "renewed; http: a@10.0.0.1:80 Ready/push"),
        (wait(ALMOST), ready),
        (wait(TICK), ""),
        // Forgotten entirely: its order too.
        (push("a", 1, 0, Ready), ready),
    ]);
}

#[test]
fn a_lapsed_lease_gives_the_word_back_to_the_slice() {
    check([
        (push("a", 1, 0, Ready), "http: a@10.0.0.1:80 Ready/push"),
        (put("one", &[("a", 1, STARTING)]), "http: a@10.0.0.1:80 Ready/push"),
        (wait(LEASE), "http: a@10.0.0.1:80 Starting/slice"),
    ]);
}

#[test]
fn pods_that_no_slice_lists_are_bounded() {
    let policy = MergePolicy { lease: LEASE, max_unlisted: 1, ..MergePolicy::default() };
    let one = "http: a@10.0.0.1:80 Ready/push";
    let refused = "TooManyPods { bound: 1 }; http: a@10.0.0.1:80 Ready/push";
    check_under(
        &policy,
        [
            (push("a", 1, 0, Ready), one),
            (push_at("b", 1, 0, Ready, 2), refused),
            (push("a", 1, 1, Ready), one),
            (put("one", &[("a", 1, READY)]), one),
            // A draining push also takes a place.
            (push_at("b", 1, 0, Draining, 2), one),
            (push_at("c", 1, 0, Ready, 6), refused),
            (wait(LEASE), "http: a@10.0.0.1:80 Ready/slice"),
            (push_at("c", 1, 0, Ready, 6), "http: a@10.0.0.1:80 Ready/slice, c@[fd00::6]:80 Ready/push"),
        ],
    );
}

// Rule 4: the slice is the slower observer, until it has once said ready.

#[test]
fn push_ready_outranks_a_slice_that_never_said_ready() {
    check([
        (put("one", &[("a", 1, STARTING)]), "http: a@10.0.0.1:80 Starting/slice"),
        (push("a", 1, 0, Ready), "http: a@10.0.0.1:80 Ready/push"),
        (put("one", &[("a", 1, FADING)]), "http: a@10.0.0.1:80 Ready/push"),
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/push"),
        (put("one", &[("a", 1, STARTING)]), "http: a@10.0.0.1:80 Starting/slice"),
        (push("a", 1, 1, Ready), "http: a@10.0.0.1:80 Starting/slice"),
        (push("a", 2, 0, Ready), "http: a@10.0.0.1:80 Starting/slice"),
    ]);
}

#[test]
fn the_first_to_say_ready_keeps_the_credit_while_it_still_says_so() {
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 0, Ready), "http: a@10.0.0.1:80 Ready/slice"),
        (push_at("b", 1, 0, Ready, 2), "http: a@10.0.0.1:80 Ready/slice, b@10.0.0.2:80 Ready/push"),
        (
            put("one", &[("a", 1, READY), ("b", 2, READY)]),
            "http: a@10.0.0.1:80 Ready/slice, b@10.0.0.2:80 Ready/push",
        ),
        (wait(LEASE), "http: a@10.0.0.1:80 Ready/slice, b@10.0.0.2:80 Ready/slice"),
    ]);
}

// Rule 5: not ready.

#[test]
fn push_not_ready_stops_requests_for_as_long_as_its_lease_runs() {
    let starting = "http: a@10.0.0.1:80 Starting/push";
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 0, NotReady), starting),
        // A late slice does not override it: neither the same conditions, nor the same again after a change.
        (put("one", &[("a", 1, READY)]), starting),
        (put("one", &[("a", 1, STARTING)]), starting),
        (put("one", &[("a", 1, READY)]), starting),
        (passed("a"), starting),
        (wait(LEASE), "http: a@10.0.0.1:80 Ready/slice"),
    ]);
}

#[test]
fn push_ready_lifts_push_not_ready() {
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 0, NotReady), "http: a@10.0.0.1:80 Starting/push"),
        (push("a", 1, 1, Ready), "http: a@10.0.0.1:80 Ready/slice"),
    ]);
}

#[test]
fn not_ready_and_terminating_is_gone() {
    check([
        (put("one", &[("a", 1, LEAVING)]), "http: a@10.0.0.1:80 Draining/slice"),
        (push("a", 1, 0, NotReady), "http: a@10.0.0.1:80 Gone/push"),
    ]);
}

// Rule 6: leaving is final.

#[test]
fn a_slice_that_said_terminating_is_not_taken_back() {
    let draining = "http: a@10.0.0.1:80 Draining/slice";
    check([
        (put("one", &[("a", 1, LEAVING)]), draining),
        (push("a", 1, 0, Ready), draining),
        (put("one", &[("a", 1, READY)]), draining),
        (put("one", &[("a", 1, STARTING)]), "http: a@10.0.0.1:80 Gone/slice"),
        (passed("a"), "http: a@10.0.0.1:80 Gone/slice"),
        (put("one", &[("a", 1, SILENT)]), draining),
        // Terminating but published as ready (`publishNotReadyAddresses`): the slice's `ready` counts.
        (put("one", &[("a", 1, PUBLISHED)]), "http: a@10.0.0.1:80 Ready/slice"),
    ]);
}

#[test]
fn a_terminating_pod_that_comes_back_within_a_lease_is_still_terminating() {
    let rows = |time: Duration, back: &'static str| {
        check([
            (put("one", &[("a", 1, LEAVING)]), "http: a@10.0.0.1:80 Draining/slice"),
            (drop_slice("one"), ""),
            (after(time, put("one", &[("a", 1, READY)])), back),
        ]);
    };
    rows(ALMOST, "http: a@10.0.0.1:80 Draining/slice");
    rows(LEASE, "http: a@10.0.0.1:80 Ready/slice");
}

#[test]
fn push_draining_is_final_for_its_boot() {
    let draining = "http: a@10.0.0.1:80 Draining/push";
    let stale = "stale after 1.1; http: a@10.0.0.1:80 Draining/push";
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 0, Draining), draining),
        (push("a", 1, 1, Draining), draining),
        (push("a", 1, 2, Ready), stale),
        (push("a", 1, 3, NotReady), stale),
        (push("a", 2, 0, Ready), "http: a@10.0.0.1:80 Ready/slice"),
    ]);
}

#[test]
fn push_draining_lasts_a_lease_unless_a_slice_agrees() {
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 0, Draining), "http: a@10.0.0.1:80 Draining/push"),
        (wait(LEASE), "http: a@10.0.0.1:80 Ready/slice"),
        // Still final for its boot.
        (push("a", 1, 1, NotReady), "stale after 1.0; http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 1, Draining), "http: a@10.0.0.1:80 Draining/push"),
        (put("one", &[("a", 1, GONE)]), "http: a@10.0.0.1:80 Gone/push"),
        (wait(LEASE), "http: a@10.0.0.1:80 Gone/slice"),
    ]);
}

#[test]
fn a_draining_push_of_an_unknown_pod_is_remembered_for_a_lease_and_gets_no_requests() {
    check([
        (push("a", 1, 1, Draining), ""),
        (push("a", 1, 0, Ready), "stale after 1.1"),
        (push("a", 1, 2, Ready), "stale after 1.1"),
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Draining/push"),
    ]);
    check([
        (push("a", 1, 1, Draining), ""),
        (wait(LEASE), ""),
        (push("a", 1, 2, Ready), "http: a@10.0.0.1:80 Ready/push"),
        (push("a", 1, 3, Draining), "http: a@10.0.0.1:80 Draining/push"),
    ]);
}

// Rule 7: removal.

#[test]
fn a_pod_removed_from_slices_is_gone_despite_its_lease_and_stale_for_one_lease() {
    check([
        (push("a", 1, 4, Ready), "http: a@10.0.0.1:80 Ready/push"),
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/push"),
        (drop_slice("one"), ""),
        (after(ALMOST, push("a", 2, 0, Ready)), "stale after 1.4"),
        (push("a", 1, 0, Ready), "http: a@10.0.0.1:80 Ready/push"),
    ]);
}

#[test]
fn a_pod_that_never_pushed_is_stale_without_an_order() {
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (put("one", &[]), ""),
        (push("a", 1, 0, Ready), "stale"),
    ]);
}

#[test]
fn a_pod_that_is_listed_again_is_judged_anew_but_its_last_words_are_remembered() {
    let starting = "http: a@10.0.0.1:80 Starting/slice";
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (push("a", 1, 4, Draining), "http: a@10.0.0.1:80 Draining/push"),
        (drop_slice("one"), ""),
        (put("one", &[("a", 1, STARTING)]), starting),
        // This boot has pushed that it is draining.
        (push("a", 1, 0, Ready), "stale after 1.4; http: a@10.0.0.1:80 Starting/slice"),
        (push("a", 1, 5, Ready), "stale after 1.4; http: a@10.0.0.1:80 Starting/slice"),
        // Its earlier readiness is forgotten, so the next boot's push takes precedence over the slice.
        (push("a", 2, 0, Ready), "http: a@10.0.0.1:80 Ready/push"),
    ]);
}

#[test]
fn a_word_that_lapsed_and_is_spoken_again_ends_a_promotion() {
    let starting = "http: a@10.0.0.1:80 Starting/slice";
    check([
        (put("one", &[("a", 1, STARTING)]), starting),
        (push("a", 1, 0, NotReady), "http: a@10.0.0.1:80 Starting/push"),
        (wait(LEASE), starting),
        (passed("a"), "http: a@10.0.0.1:80 Ready/probe"),
        (push("a", 1, 0, NotReady), "renewed; http: a@10.0.0.1:80 Starting/push"),
        (wait(LEASE), starting),
    ]);
}

#[test]
fn a_pod_is_removed_only_when_no_slice_lists_it() {
    let relist = |slices: Vec<(&'static str, Slice)>| then(Op::Replace(slices));
    let http = |entries: &[(&str, u8, Conditions)]| slice(&[("http", 80)], entries);
    let not_ready = "http: a@10.0.0.1:80 Starting/push";
    check([
        (push("a", 1, 0, NotReady), not_ready),
        (put("one", &[("a", 1, READY)]), not_ready),
        (put("two", &[("a", 1, READY)]), not_ready),
        (drop_slice("one"), not_ready),
        // Moved to another slice by a relist: never gone in between.
        (relist(vec![("three", http(&[("a", 1, READY)]))]), not_ready),
        (relist(vec![]), ""),
        (push("a", 1, 1, Ready), "stale after 1.0"),
    ]);
}

// Rule 8: the probe.

#[test]
fn a_probe_promotes_a_starting_pod_until_it_fails_or_slice_or_push_speak() {
    let starting = "http: a@10.0.0.1:80 Starting/slice";
    let probed = "http: a@10.0.0.1:80 Ready/probe";
    check([
        (put("one", &[("a", 1, STARTING)]), starting),
        (passed("a"), probed),
        (failed("a"), starting),
        (passed("a"), probed),
        // Unchanged conditions are not a new fact; changed ones are.
        (put("one", &[("a", 1, STARTING)]), probed),
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (put("one", &[("a", 1, STARTING)]), starting),
        (passed("a"), probed),
        (push("a", 1, 0, Ready), starting),
        (passed("a"), probed),
        (push("a", 1, 0, Ready), "renewed; http: a@10.0.0.1:80 Ready/probe"),
        (wait(LEASE), probed),
        (push("a", 1, 1, NotReady), "http: a@10.0.0.1:80 Starting/push"),
        (wait(LEASE), starting),
    ]);
}

#[test]
fn a_probe_proves_nothing_of_a_pod_that_is_not_starting() {
    check([
        (push("b", 1, 0, NotReady), "http: b@10.0.0.1:80 Starting/push"),
        (passed("b"), "http: b@10.0.0.1:80 Starting/push"),
        (put("one", &[("b", 1, FADING)]), "http: b@10.0.0.1:80 Starting/push"),
        (passed("b"), "http: b@10.0.0.1:80 Starting/push"),
        (wait(LEASE), "http: b@10.0.0.1:80 Draining/slice"),
        (passed("b"), "http: b@10.0.0.1:80 Draining/slice"),
        (put("one", &[("b", 1, STARTING)]), "http: b@10.0.0.1:80 Starting/slice"),
        (passed("nobody"), "http: b@10.0.0.1:80 Starting/slice"),
    ]);
}

// Rule 9: silence.

#[test]
fn when_all_are_silent_the_last_word_of_the_slices_stands() {
    let last = "http: a@10.0.0.1:80 Ready/slice, b@10.0.0.2:80 Draining/slice";
    check([
        (put("one", &[("a", 1, READY), ("b", 2, LEAVING)]), last),
        (wait(LEASE), last),
        (wait(LEASE * 10_000), last),
    ]);
}

// What is one endpoint, and where it stands.

#[test]
fn a_dual_stack_pod_is_one_endpoint_with_two_addresses() {
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (put("two", &[("a", 6, READY)]), "http: a@10.0.0.1:80,[fd00::6]:80 Ready/slice"),
        (drop_slice("one"), "http: a@[fd00::6]:80 Ready/slice"),
    ]);
    let both = push_from("a", 1, 0, Ready, &[1, 6], &[("http", 80)]);
    check([(both, "http: a@10.0.0.1:80,[fd00::6]:80 Ready/push")]);
}

#[test]
fn a_port_number_comes_from_the_endpoints_own_slice() {
    check([
        (
            put_at("one", &[("http", 80), ("admin", 90)], &[("a", 1, READY)]),
            "http: a@10.0.0.1:80 Ready/slice | admin: a@10.0.0.1:90 Ready/slice",
        ),
        (
            put_at("two", &[("http", 8080)], &[("b", 2, READY)]),
            "http: a@10.0.0.1:80 Ready/slice, b@10.0.0.2:8080 Ready/slice | admin: a@10.0.0.1:90 Ready/slice",
        ),
    ]);
}

#[test]
fn endpoints_made_by_hand_need_the_operators_consent() {
    let by_hand = || put("one", &[("?", 1, READY), ("a", 2, READY)]);
    check([(by_hand(), "http: a@10.0.0.2:80 Ready/slice")]);
    let policy = MergePolicy { lease: LEASE, manual_endpoints: true, ..MergePolicy::default() };
    check_under(
        &policy,
        [
            (by_hand(), "http: ?@10.0.0.1:80 Ready/slice, a@10.0.0.2:80 Ready/slice"),
            // The better state wins, and `terminating` is not final without a pod identity.
            (
                put("two", &[("?", 1, GONE), ("?", 6, GONE)]),
                "http: ?@10.0.0.1:80 Ready/slice, a@10.0.0.2:80 Ready/slice, ?@[fd00::6]:80 Gone/slice",
            ),
            (drop_slice("one"), "http: ?@10.0.0.1:80 Gone/slice, ?@[fd00::6]:80 Gone/slice"),
            (put("two", &[("?", 1, READY)]), "http: ?@10.0.0.1:80 Ready/slice"),
            // An endpoint made by hand is wanted at this address: a pod's push does not replace it.
            (push("a", 1, 0, Ready), "stale; http: ?@10.0.0.1:80 Ready/slice"),
            (push("b", 1, 0, Ready), "http: ?@10.0.0.1:80 Ready/slice"),
        ],
    );
}

#[test]
fn terminating_wins_among_the_entries_of_one_pod() {
    let draining = "http: a@10.0.0.1:80 Draining/slice";
    check([
        (put("one", &[("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (put("two", &[("a", 1, LEAVING)]), draining),
        (put("two", &[("a", 1, GONE)]), "http: a@10.0.0.1:80 Gone/slice"),
        (put("two", &[("a", 1, GONE), ("a", 1, LEAVING)]), draining),
    ]);
    check([(put("one", &[("a", 1, STARTING), ("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice")]);
}

#[test]
fn among_different_pods_the_better_state_wins_and_the_first_of_equals_stays() {
    check([
        (put("one", &[("a", 1, STARTING), ("b", 1, FADING)]), "http: b@10.0.0.1:80 Draining/slice"),
        (put("one", &[("a", 1, READY), ("b", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
        (put("one", &[("b", 1, READY), ("a", 1, READY)]), "http: b@10.0.0.1:80 Ready/slice"),
        (put("one", &[("b", 1, STARTING), ("a", 1, READY)]), "http: a@10.0.0.1:80 Ready/slice"),
    ]);
}

#[test]
fn a_pod_moves_to_an_address_when_its_rival_fades() {
    check([
        (
            put("one", &[("a", 1, READY), ("b", 1, STARTING), ("c", 2, READY)]),
            "http: a@10.0.0.1:80 Ready/slice, c@10.0.0.2:80 Ready/slice",
        ),
        // In the place where the address first appeared.
        (push_at("a", 1, 0, NotReady, 6), "http: a@10.0.0.1:80 Starting/push, c@10.0.0.2:80 Ready/slice"),
        (passed("b"), "http: b@10.0.0.1:80 Ready/probe, c@10.0.0.2:80 Ready/slice"),
    ]);
}

#[test]
fn everything_stands_in_order_of_first_appearance() {
    check([
        (push_at("d", 1, 0, Ready, 6), "http: d@[fd00::6]:80 Ready/push"),
        (put("one", &[("b", 2, READY)]), "http: b@10.0.0.2:80 Ready/slice, d@[fd00::6]:80 Ready/push"),
        (
            put_at("two", &[("admin", 90), ("http", 80)], &[("a", 1, READY)]),
            "http: b@10.0.0.2:80 Ready/slice, a@10.0.0.1:80 Ready/slice, d@[fd00::6]:80 Ready/push \
             | admin: a@10.0.0.1:90 Ready/slice",
        ),
        // Rewritten in its place, though the port now appears first in the other one.
        (
            put_at("one", &[("http", 81)], &[("b", 2, READY)]),
            "http: b@10.0.0.2:81 Ready/slice, a@10.0.0.1:80 Ready/slice, d@[fd00::6]:80 Ready/push \
             | admin: a@10.0.0.1:90 Ready/slice",
        ),
        (
            drop_slice("one"),
            "admin: a@10.0.0.1:90 Ready/slice | http: a@10.0.0.1:80 Ready/slice, d@[fd00::6]:80 Ready/push",
        ),
        (
            put("one", &[("b", 2, READY)]),
            "admin: a@10.0.0.1:90 Ready/slice \
             | http: a@10.0.0.1:80 Ready/slice, b@10.0.0.2:80 Ready/slice, d@[fd00::6]:80 Ready/push",
        ),
    ]);
}
