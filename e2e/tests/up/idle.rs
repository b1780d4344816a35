//! Idle apps: an open connection or stream keeps an app from going to zero, and a closed one does not. An idle policy that
//! learns starts a pod before the next call of a regular caller.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::Method;
use rouse_e2e::body;
use rouse_e2e::client::session::{Http, whole};
use rouse_e2e::client::websocket;
use rouse_e2e::config::{App, Config};
use rouse_e2e::proc;
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::wait::within;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::fixture::{ask, programs, test_app, uid, until_state, way, yaml};

/// Two apps that go to zero after a second.
async fn start() -> Rouse {
    let quick = |name| App::http().named(name).scale("idle-after", "1s");
    Rouse::start(&programs(), Config::of(quick("app")).and(quick("other"))).await
}

/// Asserts that `app`, which has an open request, keeps its pod, while `other`, used later, goes to zero.
async fn stays(rouse: &Rouse) {
    let pods = rouse.admin.service("app").await.endpoints;
    for _ in 0..2 {
        uid(rouse, "other").await;
        until_state(rouse, "other", "zero").await;
    }
    let now = rouse.admin.service("app").await;
    assert_eq!((now.state.as_str(), now.in_flight), ("serving", 1), "{now:?}");
    assert_eq!((now.endpoints.len(), &now.endpoints[0].uid), (1, &pods[0].uid));
}

/// Asserts that `app` has no request in flight, after enough time to go to zero: `other` does so twice.
async fn has_let_go(rouse: &Rouse) {
    for _ in 0..2 {
        uid(rouse, "other").await;
        until_state(rouse, "other", "zero").await;
    }
    assert_eq!(rouse.admin.service("app").await.in_flight, 0, "no pod of the app has a request in flight");
}

pub(crate) async fn a_websocket_that_its_pod_has_ended_keeps_nothing_awake() {
    let rouse = start().await;
    // A client that keeps the connection open after both sides have sent a close frame.
    let (mut socket, _) = websocket::connect(&way(&rouse, "app"), "/ws").await;
    socket.close(None).await.unwrap();
    until_end(&mut socket).await;
    has_let_go(&rouse).await;
    drop(socket);
    rouse.stop().await;
}

pub(crate) async fn a_websocket_whose_pod_was_killed_keeps_nothing_awake() {
    let rouse = start().await;
    let (mut socket, _) = websocket::connect(&way(&rouse, "app"), "/ws").await;
    let pod = rouse.admin.service("app").await.endpoints.remove(0);
    proc::signal(pod.pid.unwrap(), Signal::KILL);
    until_end(&mut socket).await;
    has_let_go(&rouse).await;
    until_state(&rouse, "app", "zero").await;
    drop(socket);
    rouse.stop().await;
}

/// Reads until the other side has closed it.
async fn until_end(socket: &mut WebSocketStream<TcpStream>) {
    within("the end", async { while socket.next().await.is_some_and(|message| message.is_ok()) {} }).await;
}

pub(crate) async fn an_open_event_stream_keeps_an_app_from_zero() {
    let rouse = start().await;
    let mut http = Http::one(&way(&rouse, "app")).await;
    let request = http.request(Method::GET, "/sse/2/next").body(body::empty()).unwrap();
    let stream = http.send(request).await;
    assert_eq!(stream.status(), 200);
    stays(&rouse).await;
    assert_eq!(ask(&rouse, "app", "/next").await.status, 200);
    assert_eq!(whole(stream).await.unwrap().text(), "data: 1\n\ndata: 2\n\n");
    until_state(&rouse, "app", "zero").await;
    rouse.stop().await;
}

pub(crate) async fn an_open_websocket_keeps_an_app_from_zero() {
    let rouse = start().await;
    let (mut socket, _) = websocket::connect(&way(&rouse, "app"), "/ws").await;
    stays(&rouse).await;
    socket.send(Message::text("still here")).await.unwrap();
    let echo = within("the echo", socket.next()).await.unwrap().unwrap();
    assert_eq!(echo.into_text().unwrap().as_str(), "still here");
    socket.close(None).await.unwrap();
    until_end(&mut socket).await;
    drop(socket);
    until_state(&rouse, "app", "zero").await;
    rouse.stop().await;
}

/// How many times faster the clocks of `rouse up` run.
const SPEED: u32 = 30;
/// The most calls until the app has learned. Four gaps are enough; on a busy machine, some are of another length.
const CALLS: usize = 40;

/// A call: the pod that answered, and whether the caller waited for its start.
#[derive(Debug)]
struct Call {
    pod: String,
    cold: bool,
}

pub(crate) async fn a_caller_every_90_seconds_meets_a_warm_pod_although_idle_after_is_20_seconds() {
    let (app, scale) = (test_app(), "{idle-after: 20s, idle: learned}");
    // The deadlines of requests run as fast as all clocks: on a busy machine, a start may take minutes.
    let apps = format!("  app: {{command: [{app}], scale: {scale}, timeouts: {{readiness: 1h}}}}\n");
    let launch = Launch::of(&yaml(&apps)).argument(format!("--clock-speed={SPEED}"));
    let rouse = launch.up(&programs()).await;
    let mut caller = interval(Duration::from_secs(90) / SPEED);
    caller.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut calls: Vec<Call> = Vec::new();
    // A warm call of another pod than the last: it was away, and it came back in time.
    let is_met = |pair: &[Call]| !pair[1].cold && pair[0].pod != pair[1].pod;
    while calls.windows(2).rev().take_while(|pair| is_met(pair)).count() < 3 {
        assert!(
            calls.len() < CALLS,
            "no three calls in sequence met a pod that was started for them: {calls:#?}"
        );
        caller.tick().await;
        let answer = ask(&rouse, "app", "/").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let pod = answer.text().split_whitespace().next().unwrap_or_default().to_owned();
        calls.push(Call { pod, cold: answer.header("x-rouse-cold-start") == "true" });
    }
    assert!(calls[..3].iter().all(|call| call.cold), "at first, 20 s count: {calls:#?}");
    rouse.stop().await;
}
