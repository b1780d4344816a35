//! `Expect: 100-continue`, end to end: only the pod sends the 100.

use rouse_e2e::client::raw::Raw;
use rouse_e2e::config::{App, Config};
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_e2e::{pattern, programs, ways};

fn head(target: &Target, path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
        target.host
    )
}

async fn go_on(client: &mut Raw) {
    let interim = client.head().await;
    assert_eq!(interim.status, 100, "{interim:?}");
    client.send(pattern::whole(10)).await;
    let (head, sunk) = client.json().await;
    assert_eq!((head.status, &sunk["count"], &sunk["intact"]), (200, &10.into(), &true.into()));
}

ways!(the_body_goes_when_the_pod_says_so, App::http());
async fn the_body_goes_when_the_pod_says_so(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.send(head(&target, "/expect/accept")).await;
    go_on(&mut client).await;
    // The same connection once more, now that it is warm.
    client.send(head(&target, "/expect/accept")).await;
    go_on(&mut client).await;
}

ways!(no_100_continue_before_the_pod_sends_it, App::http());
async fn no_100_continue_before_the_pod_sends_it(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.send(head(&target, "/sink/next")).await;
    target.until("waiting", |waiting| waiting == 1).await;
    assert!(client.silent().await, "a 100 that the pod did not send");
    target.next().await;
    go_on(&mut client).await;
}

ways!(a_refused_body_is_never_sent, App::http());
async fn a_refused_body_is_never_sent(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.send(head(&target, "/expect/reject")).await;
    let (head, body) = client.response().await;
    assert_eq!((head.status, &*body), (417, &b"no\n"[..]), "the refusal comes first, without a 100");
    assert_eq!(target.stat("received").await, 0);
}

ways!(who_does_not_wait_for_the_go_on_is_served_too, App::http());
async fn who_does_not_wait_for_the_go_on_is_served_too(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.send(head(&target, "/expect/accept")).await;
    client.send(pattern::whole(10)).await;
    let mut head = client.head().await;
    if head.status == 100 {
        head = client.head().await;
    }
    let body = client.body(&head).await;
    let sunk: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((head.status, &sunk["count"], &sunk["intact"]), (200, &10.into(), &true.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_request_hears_nothing_before_its_pod_is_there() {
    let gate = tempfile::tempdir().unwrap();
    let gate = gate.path().join("open");
    let app = App::http().env("START_GATE", gate.display());
    let rouse = Rouse::start(&programs!(), Config::of(app)).await;
    let target = rouse.target(true);
    let mut client = Raw::connect(&target).await;
    client.send(head(&target, "/expect/accept")).await;
    rouse.admin.until("app", "one hold", |service| service.holds == 1).await;
    assert!(client.silent().await, "a 100 before there is a pod to take the body");
    std::fs::write(&gate, "").unwrap();
    go_on(&mut client).await;
    rouse.stop().await;
}
