//! Tests of the test app itself: other tests rely on its settings.

use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session;
use rouse_e2e::config::App;
use rouse_e2e::pod::Pod;
use rouse_e2e::programs;
use rouse_e2e::wait::eventually;
use rustix::process::Signal;

async fn start(app: App) -> Pod {
    Pod::start(&programs!(), &app).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_its_limit_is_refused_and_remembered() {
    let pod = start(App::http().env("LIMIT", 1)).await;
    let mut waiting = Raw::connect(&pod.target).await;
    waiting.get(&pod.target, "/wait").await;
    let refused = eventually("a refusal", async || {
        Some(session::get(&pod.target, "/next").await).filter(|it| it.status == 500)
    })
    .await;
    assert_eq!(refused.header("x-over-limit"), "1");
    drop(waiting);
    let stats = eventually("the app to be below its limit", async || {
        Some(session::get(&pod.target, "/stats").await).filter(|it| it.status == 200)
    })
    .await
    .json();
    assert!(stats["over_limit"].as_u64().unwrap() >= 1, "{stats}");
    assert_eq!(stats["most_in_flight"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_it_bears_is_its_death() {
    let pod = start(App::http().env("DIE_ABOVE", 1)).await;
    let (mut one, mut two) = (Raw::connect(&pod.target).await, Raw::connect(&pod.target).await);
    one.get(&pod.target, "/hang").await;
    two.get(&pod.target, "/hang").await;
    assert_eq!((one.ended().await, two.ended().await), ("".into(), "".into()));
    assert_eq!(pod.ended().await, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_finishes_what_it_has_when_it_is_asked_to_end() {
    let pod = start(App::http()).await;
    let mut client = Raw::connect(&pod.target).await;
    client.get(&pod.target, "/slow/200").await;
    pod.target.until("in_flight", |requests| requests == 2).await;
    pod.signal(Signal::TERM);
    assert_eq!(client.response().await.1, "slow\n");
    assert_eq!(pod.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_deaf_to_sigterm() {
    let pod = start(App::http().env("IGNORE_TERM", 1)).await;
    pod.signal(Signal::TERM);
    assert_eq!(session::get(&pod.target, "/slow/50").await.status, 200);
    pod.signal(Signal::KILL);
    assert_eq!(pod.ended().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_stop_listening_and_live_on() {
    let pod = start(App::http().env("CLOSE_AFTER", 1)).await;
    let mut client = Raw::connect(&pod.target).await;
    pod.output.find("the end of listening", |line| line.contains("listens no more").then_some(())).await;
    assert!(tokio::net::TcpStream::connect(pod.target.address).await.is_err());
    client.get(&pod.target, "/").await;
    assert_eq!(client.response().await.0.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_hangs_up_without_an_answer() {
    let pod = start(App::http()).await;
    let mut client = Raw::connect(&pod.target).await;
    client.get(&pod.target, "/reset").await;
    assert_eq!(client.ended().await, "");
    assert_eq!(session::get(&pod.target, "/").await.status, 200);
    let mut client = Raw::connect(&pod.target).await;
    client.get(&pod.target, "/die").await;
    assert_eq!(client.ended().await, "");
    assert_eq!(pod.ended().await, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_sends_events_at_a_pace() {
    let pod = start(App::http()).await;
    assert_eq!(session::get(&pod.target, "/sse/3/1").await.body, "data: 1\n\ndata: 2\n\ndata: 3\n\n");
}
