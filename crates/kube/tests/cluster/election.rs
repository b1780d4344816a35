//! Leader election on a Lease of the scripted API server.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use rouse_core::time::Clock as _;
use rouse_kube::lease::{CONTROLLER_LEASE, LeaderElection, Leadership};
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::autoscale::rig::{JumpClock, LEASES, OWN, lease_settings};
use crate::rig::pass;

struct Candidate {
    clock: Arc<JumpClock>,
    leadership: Leadership,
    cancel: CancellationToken,
    task: JoinSet<()>,
}

impl Candidate {
    fn start(api: &ApiServer, name: &str) -> Self {
        let clock = JumpClock::new();
        let election = LeaderElection::new(api.client(), lease_settings(name, &clock));
        let (leadership, cancel) = (election.leadership(), CancellationToken::new());
        let mut task = JoinSet::new();
        task.spawn(election.run(cancel.clone()));
        Self { clock, leadership, cancel, task }
    }

    /// Waits until it leads. Returns how long that took.
    async fn leads(&self) -> Duration {
        let began = Instant::now();
        while !self.leadership.may_write() {
            assert!(began.elapsed() < Duration::from_mins(5), "never leads: {:?}", self.leadership);
            pass(Duration::from_millis(5)).await;
        }
        began.elapsed()
    }

    async fn stop(mut self) {
        self.cancel.cancel();
        while self.task.join_next().await.is_some() {}
    }
}

fn free(api: &ApiServer) {
    api.put(LEASES, json!({"metadata": {"name": CONTROLLER_LEASE, "namespace": OWN}, "spec": {}}));
}

fn spec(api: &ApiServer) -> Value {
    api.get(LEASES, OWN, CONTROLLER_LEASE).unwrap()["spec"].clone()
}

#[tokio::test(start_paused = true)]
async fn one_of_several_candidates_leads_and_renews_every_five_seconds() {
    let api = ApiServer::default();
    free(&api);
    let (one, other) = (Candidate::start(&api, "one"), Candidate::start(&api, "other"));
    one.leads().await;
    assert_eq!(
        (&spec(&api)["holderIdentity"], &spec(&api)["leaseDurationSeconds"]),
        (&json!("one"), &json!(15))
    );
    let before = api.requests(|request| request.method == Method::PATCH).len();
    for n in 0..600 {
        let leads = (one.leadership.may_write(), other.leadership.may_write());
        assert_eq!(leads, (true, false), "{n} {:?}", api.requests(|request| request.path.contains("lease")));
        pass(Duration::from_millis(100)).await;
    }
    let writes = api.requests(|request| request.method == Method::PATCH).len() - before;
    assert!((11..=13).contains(&writes), "{writes} writes in a minute");
    let state = other.leadership.state().borrow().clone();
    assert_eq!((state.leads, state.term, state.holder.as_deref()), (false, 0, Some("one")));
    assert_eq!(one.leadership.state().borrow().term, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_released_is_taken_over_at_once() {
    let api = ApiServer::default();
    free(&api);
    let one = Candidate::start(&api, "one");
    one.leads().await;
    let other = Candidate::start(&api, "other");
    pass(Duration::from_secs(20)).await;
    let leadership = one.leadership.clone();
    one.stop().await;
    assert!(!leadership.may_write());
    assert_eq!(spec(&api).get("holderIdentity"), None);
    let took = other.leads().await;
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!(
        (&spec(&api)["holderIdentity"], &spec(&api)["leaseTransitions"]),
        (&json!("other"), &json!(2))
    );
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_dies_is_followed_after_its_lease() {
    let api = ApiServer::default();
    free(&api);
    let mut one = Candidate::start(&api, "one");
    one.leads().await;
    let other = Candidate::start(&api, "other");
    pass(Duration::from_secs(20)).await;
    one.task.shutdown().await;
    let took = other.leads().await;
    assert!((Duration::from_secs(10)..=Duration::from_secs(18)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_missing_is_made_and_taken_after_its_length() {
    let api = ApiServer::default();
    let (one, other) = (Candidate::start(&api, "one"), Candidate::start(&api, "other"));
    let began = Instant::now();
    while !one.leadership.may_write() && !other.leadership.may_write() {
        assert!(began.elapsed() < Duration::from_mins(1), "no candidate leads");
        pass(Duration::from_millis(5)).await;
    }
    assert!(began.elapsed() >= Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_past_its_lease_may_not_write_when_it_goes_on() {
    let api = ApiServer::default();
    free(&api);
    let one = Candidate::start(&api, "one");
    one.leads().await;
    one.clock.jump(11);
    assert!(!one.leadership.may_write(), "although no task of it has run since");
    // Nobody has taken the Lease: it goes on, in another term.
    one.leads().await;
    assert_eq!(one.leadership.state().borrow().term, 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_the_api_server_stops_before_another_one_begins() {
    let api = ApiServer::default();
    free(&api);
    let one = Candidate::start(&api, "one");
    one.leads().await;
    pass(Duration::from_secs(30)).await;
    let mut state = one.leadership.state();
    state.mark_unchanged();
    api.set_down(true);
    let lost = Instant::now();
    while one.leadership.may_write() {
        pass(Duration::from_millis(5)).await;
    }
    assert!(lost.elapsed() <= Duration::from_secs(10), "{:?}", lost.elapsed());
    pass(Duration::from_millis(50)).await;
    assert!(!state.borrow_and_update().leads, "what waits for the change sees it");
    api.set_down(false);
    one.leads().await;
    assert!(one.clock.now() > rouse_core::time::Moment::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_the_lease_by_a_person_costs_nobody_the_leadership() {
    let api = ApiServer::default();
    free(&api);
    let one = Candidate::start(&api, "one");
    one.leads().await;
    let _other = Candidate::start(&api, "other");
    for _ in 0..100 {
        let mut object = api.get(LEASES, OWN, CONTROLLER_LEASE).unwrap();
        object["metadata"]["labels"] = json!({"edited": api.version().to_string()});
        api.put(LEASES, object);
        pass(Duration::from_millis(700)).await;
        assert!(one.leadership.may_write());
    }
    // Each edit is read by the other candidate, but not more often than every 100 ms.
    let reads =
        api.requests(|request| request.method == Method::GET && request.path.ends_with(CONTROLLER_LEASE));
    assert!(reads.len() < 400, "{}", reads.len());
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_read_is_reported_once_and_nothing_leads() {
    let api = ApiServer::default();
    api.refuse(Method::GET, "/leases/", 403, "not you", None);
    let clock = JumpClock::new();
    let election = LeaderElection::new(api.client(), lease_settings("one", &clock));
    let (leadership, mut events) = (election.leadership(), election.events());
    let mut task = JoinSet::new();
    task.spawn(election.run(CancellationToken::new()));
    pass(Duration::from_mins(1)).await;
    assert!(!leadership.may_write());
    let texts = crate::rig::event_texts(&mut events);
    let said = texts.iter().filter(|text| text.contains("Lease rouse-system/rouse-controller: not you"));
    assert_eq!(said.count(), 1, "{texts:?}");
}
