//! Routes that are changed and deleted under requests, and a gateway that is replaced meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use rouse_e2e::client::session::{self, Http};
use rouse_e2e::target::Target;
use rouse_e2e::wait::{patiently, within};
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::App;
use crate::harness::{Case, trial};
use crate::test_namespace::{ROUTE, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_route_that_changes_or_goes_fails_no_request),
    trial!(requests_under_way_survive_a_restart_of_the_gateway),
];

/// A response: the status, and the pod or the gateway's own error.
type Answered = (u16, String);

/// Clients that send requests one after the other, about 50 per second together.
struct Trickle {
    answers: Vec<Arc<Mutex<Vec<Answered>>>>,
    // Ends with it.
    clients: JoinSet<()>,
}

impl Trickle {
    fn start(target: &Target) -> Self {
        let (mut clients, mut answers) = (JoinSet::new(), Vec::new());
        // One client keeps its connection, the other opens a new one each time.
        for keeps in [true, false] {
            let (target, book) = (target.clone(), Arc::default());
            answers.push(Arc::clone(&book));
            clients.spawn(ask_on(target, keeps, book));
        }
        Self { answers, clients }
    }

    /// All responses so far, separately for each client.
    fn so_far(&self) -> Vec<Vec<Answered>> {
        self.answers.iter().map(|answers| answers.lock().unwrap().clone()).collect()
    }

    /// Waits until `is` accepts the last 20 responses of each client.
    async fn until(&mut self, what: &str, is: impl Fn(&Answered) -> bool) {
        patiently(what, async || {
            assert!(self.clients.try_join_next().is_none(), "a client has panicked: {:?}", self.so_far());
            let all = self.so_far();
            let settled =
                |answers: &Vec<Answered>| answers.len() >= 20 && answers.iter().rev().take(20).all(&is);
            all.iter().all(settled).then_some(())
        })
        .await;
    }
}

async fn ask_on(target: Target, keeps: bool, book: Arc<Mutex<Vec<Answered>>>) {
    let mut pace = interval(Duration::from_millis(40));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut kept = Http::one(&target).await;
    loop {
        pace.tick().await;
        let answer = if keeps { kept.get("/headers").await } else { session::get(&target, "/headers").await };
        let by = match answer.status {
            StatusCode::OK => answer.json()["pod"].as_str().unwrap_or_default().to_owned(),
            _ => answer.header("x-rouse-error").to_owned(),
        };
        book.lock().unwrap().push((answer.status.as_u16(), by));
    }
}

async fn a_route_that_changes_or_goes_fails_no_request(space: TestNamespace) {
    for app in ["a", "b"] {
        space.run(&App::new(app).replicas(1)).await;
    }
    space.apply(space.route("shop").service("a").object()).await;
    let ([a], [b]) = (&space.ready_pods("a", 1).await[..], &space.ready_pods("b", 1).await[..]) else {
        panic!("one pod each")
    };
    let gateway = space.gateway().await;
    let mut trickle = Trickle::start(&gateway.target(&space.host("shop")));
    trickle.until("answers of a", |(status, pod)| *status == 200 && *pod == a.name).await;

    space.patch(ROUTE, "shop", json!({ "spec": { "target": { "service": "b" } } })).await;
    trickle.until("answers of b alone", |(status, pod)| *status == 200 && *pod == b.name).await;
    for answers in trickle.so_far() {
        let first_of_b = answers.iter().position(|(_, pod)| *pod == b.name).expect("an answer of b");
        let (before, after) = answers.split_at(first_of_b);
        assert!(before.iter().all(|(status, pod)| *status == 200 && *pod == a.name), "{before:?}");
        assert!(after.iter().all(|(status, pod)| *status == 200 && *pod == b.name), "{after:?}");
    }

    space.delete(ROUTE, "shop").await;
    trickle.until("no route", |(status, error)| *status == 404 && error == "no_route").await;
    for answers in trickle.so_far() {
        let gone = answers.iter().position(|(status, _)| *status != 200).expect("a refusal");
        let (before, after) = answers.split_at(gone);
        assert!(before.iter().all(|(_, pod)| [&a.name, &b.name].contains(&pod)), "{before:?}");
        assert!(after.iter().all(|it| *it == (404, "no_route".to_owned())), "{after:?}");
    }
    drop(trickle);
    gateway.stop().await;
}

async fn requests_under_way_survive_a_restart_of_the_gateway(space: TestNamespace) {
    space.serve(&App::new("shop").replicas(1)).await;
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    let pod = Target::plain((pod.ip, 8080).into());
    let launch = space.launch().await;
    let old = launch.clone().flag("--shutdown-delay", "2s").flag("--drain-timeout", "3m");
    let mut old = old.start(&programs()).await;
    let target = old.target(&space.host("shop"));
    let mut ten_seconds = session::get_many(&target, "/slow/10000", 1);
    let mut as_long_as_it_takes = session::get_many(&target, "/wait", 1);
    let service = format!("{}/shop", space.name());
    patiently("both to be at the pod", async || {
        (old.admin.service_named(&service).await.in_flight == 2).then_some(())
    })
    .await;

    old.signal(Signal::TERM);
    let new = launch.start(&programs()).await;
    let answer = session::get(&new.target(&space.host("shop")), "/headers").await;
    assert_eq!(answer.status, StatusCode::OK, "the new one serves: {}", answer.text());
    patiently("the old one to take no more connections", async || {
        TcpStream::connect(target.address).await.is_err().then_some(())
    })
    .await;
    let whole =
        within("the ten seconds", ten_seconds.join_next()).await.expect("a request").expect("an answer");
    assert_eq!((whole.status, &*whole.text()), (StatusCode::OK, "slow\n"));
    assert_eq!(as_long_as_it_takes.len(), 1);
    pod.next().await;
    let whole =
        within("the other", as_long_as_it_takes.join_next()).await.expect("a request").expect("an answer");
    assert_eq!((whole.status, &*whole.text()), (StatusCode::OK, "waited\n"));
    assert_eq!(old.ended().await, Some(0), "how the old one ended");
    let answer = session::get(&new.target(&space.host("shop")), "/headers").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    new.stop().await;
}
