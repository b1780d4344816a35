//! Shutdown of `rouse up`: one signal drains, a second one stops at once.

use std::time::Duration;

use futures_util::StreamExt as _;
use http::Method;
use rouse_e2e::body;
use rouse_e2e::client::session::{FullResponse, Http, get, whole};
use rouse_e2e::client::websocket;
use rouse_e2e::config::{App, Config};
use rouse_e2e::proc::{self, Process};
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::target::Target;
use rouse_e2e::wait::within;
use rustix::process::Signal;
use tokio::task::JoinSet;

use crate::fixture::{printed, programs, test_app, way, yaml};

/// A `rouse up` that drains and waits for one request to `path`, and that request.
async fn draining(path: &'static str) -> (Rouse, JoinSet<Option<FullResponse>>) {
    let config = Config::of(App::http().warm()).flag("--drain-timeout", "10m");
    let rouse = Rouse::start(&programs(), config).await;
    rouse.ready("app").await;
    let (target, mut asked) = (way(&rouse, "app"), JoinSet::new());
    asked.spawn(async move {
        let mut http = Http::one(&target).await;
        let request = http.request(Method::GET, path).body(body::empty()).unwrap();
        let response = http.try_send(request).await.ok()?;
        whole(response).await.ok()
    });
    rouse.admin.until("app", "a request under way", |app| app.in_flight == 1).await;
    rouse.signal(Signal::TERM);
    printed(&rouse, "draining: 1 request under way for local/app ", 1).await;
    (rouse, asked)
}

/// Sends signals until one counts as the second.
async fn insist(rouse: &mut Rouse) -> Option<i32> {
    let pid = rouse.pid;
    let again = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        loop {
            ticks.tick().await;
            if Process::of(pid).is_some_and(|rouse| rouse.runs()) {
                proc::signal(pid, Signal::TERM);
            }
        }
    };
    tokio::select! {
        code = rouse.ended() => code,
        () = again => None,
    }
}

pub(crate) async fn ctrl_c_waits_three_seconds_for_a_websocket_and_says_so() {
    let mut rouse = Launch::of(&yaml(&format!("  app: {{command: [{}]}}\n", test_app())))
        .as_typed()
        .up(&programs())
        .await;
    let (mut socket, _) = websocket::connect(&way(&rouse, "app"), "/ws").await;
    let children = rouse.children();
    rouse.signal(Signal::INT);
    printed(&rouse, "draining: 1 request under way for local/app (open WebSockets", 1).await;
    assert_eq!(rouse.ended().await, Some(0), "one signal drains instead of stopping at once");
    let lines = rouse.output.lines();
    assert!(lines.iter().any(|line| line.starts_with("cut off after 3s: 1 request")), "{lines:#?}");
    assert!(children.iter().all(|child| !child.runs()), "{children:?}");
    within("the end", async { while socket.next().await.is_some_and(|message| message.is_ok()) {} }).await;
}

pub(crate) async fn two_signals_at_once_are_one() {
    let rouse = Rouse::start(&programs(), Config::of(App::http().warm())).await;
    rouse.ready("app").await;
    let children = rouse.children();
    // While it is stopped, both signals become pending, so it gets them together also on a busy machine.
    rouse.signal(Signal::STOP);
    rouse.signal(Signal::INT);
    rouse.signal(Signal::TERM);
    rouse.signal(Signal::CONT);
    rouse.stopped(&children).await;
}

pub(crate) async fn sigterm_lets_a_request_finish_first() {
    let (rouse, mut asked) = draining("/wait").await;
    let children = rouse.children();
    let pod = rouse.admin.service("app").await.endpoints[0].address;
    // Directly to the pod: the gateway accepts no new connections.
    assert_eq!(get(&Target::plain(pod), "/next").await.status, 200);
    let answer = asked.join_next().await.unwrap().unwrap().expect("the request is answered");
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "waited\n"));
    rouse.stopped(&children).await;
}

pub(crate) async fn a_second_sigterm_does_not_wait_for_pods_that_do_not_end() {
    let app = App::http().warm().env("IGNORE_TERM", 1).stop_grace("10m");
    let mut rouse = Rouse::start(&programs(), Config::of(app)).await;
    rouse.ready("app").await;
    let children = rouse.children();
    rouse.signal(Signal::TERM);
    printed(&rouse, "stopping 1 pod; press Ctrl-C again to stop at once", 1).await;
    assert_eq!(insist(&mut rouse).await, Some(1));
    let left: Vec<_> = children.iter().filter(|child| child.runs()).collect();
    assert!(left.is_empty(), "{left:?}");
}

pub(crate) async fn a_websocket_whose_pod_was_killed_does_not_delay_the_shutdown() {
    let config = Config::of(App::http().warm()).flag("--drain-timeout", "2s");
    let mut rouse = Rouse::start(&programs(), config).await;
    let (mut socket, _) = websocket::connect(&way(&rouse, "app"), "/ws").await;
    let pod = rouse.admin.service("app").await.endpoints.remove(0);
    proc::signal(pod.pid.unwrap(), Signal::KILL);
    within("the end", async { while socket.next().await.is_some_and(|message| message.is_ok()) {} }).await;
    rouse.signal(Signal::TERM);
    assert_eq!(rouse.ended().await, Some(0));
    let lines = rouse.output.lines();
    assert!(!lines.iter().any(|line| line.contains("cut off after 2s")), "the drain timed out: {lines:#?}");
}

pub(crate) async fn a_second_sigterm_ends_at_once_and_leaves_nothing() {
    let (mut rouse, mut asked) = draining("/hang").await;
    let children = rouse.children();
    assert!(!children.is_empty());
    assert_eq!(insist(&mut rouse).await, Some(1));
    let left: Vec<_> = children.iter().filter(|child| child.runs()).collect();
    assert!(left.is_empty(), "{left:?}");
    let lines = rouse.output.lines();
    assert!(lines.iter().any(|line| line.contains("stopped at once by a second signal")), "{lines:#?}");
    asked.join_next().await.unwrap().unwrap();
}
