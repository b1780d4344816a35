//! Streamed bodies: the gateway forwards data at once, and a reader that stops makes the sender wait.

use rouse_e2e::client::raw::Raw;
use rouse_e2e::config::App;
use rouse_e2e::pattern::{self, Checker};
use rouse_e2e::proc::Memory;
use rouse_e2e::target::Target;
use rouse_e2e::wait::settled;
use rouse_e2e::ways;

const MIB: u64 = 1024 * 1024;

ways!(each_event_comes_before_the_next_is_sent, App::http());
async fn each_event_comes_before_the_next_is_sent(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.get(&target, "/sse/4/next").await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-type")), (200, "text/event-stream"));
    for event in 1..=4 {
        // The app sends the next event only on request: the gateway did not wait for more data.
        assert_eq!(client.chunk().await.unwrap(), format!("data: {event}\n\n"));
        if event < 4 {
            target.next().await;
        }
    }
    assert_eq!(client.chunk().await, None);
}

ways!(the_app_hears_that_the_reader_of_its_events_left, App::http());
async fn the_app_hears_that_the_reader_of_its_events_left(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.get(&target, "/sse/4/next").await;
    client.head().await;
    assert_eq!(client.chunk().await.unwrap(), "data: 1\n\n");
    client.reset();
    target.until("cancelled", |streams| streams == 1).await;
}

ways!(
    the_app_hears_that_a_waiting_client_left as a_pod_of_http_1_hears_that_a_waiting_client_left,
    App::http()
);
ways!(
    the_app_hears_that_a_waiting_client_left as a_pod_of_http_2_hears_that_a_waiting_client_left,
    App::h2c()
);
async fn the_app_hears_that_a_waiting_client_left(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.get(&target, "/hang").await;
    // The request that hangs, and the one for `/stats`.
    target.until("in_flight", |requests| requests == 2).await;
    client.reset();
    target.until("in_flight", |requests| requests == 1).await;
}

ways!(the_answer_begins_before_the_question_ends as full_duplex_with_a_pod_of_http_1, App::http());
ways!(the_answer_begins_before_the_question_ends as full_duplex_with_a_pod_of_http_2, App::h2c());
async fn the_answer_begins_before_the_question_ends(target: Target) {
    let mut client = Raw::connect(&target).await;
    let head = format!("POST /echo HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", target.host);
    client.send(head + "5\r\nfirst\r\n").await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.chunk().await.unwrap(), "first");
    for word in ["then", "more", "last"] {
        client.send(format!("4\r\n{word}\r\n")).await;
        assert_eq!(client.chunk().await.unwrap(), word);
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.chunk().await, None);
}

/// An upper limit for the kernel buffers and flow control windows of three connections.
const HELD_AT_MOST: u64 = 64 * MIB;
const GROWS_AT_MOST: u64 = 32 * 1024;

fn watch(target: &Target) -> Option<Memory> {
    target.gateway.as_ref().map(|gateway| Memory::watch(gateway.pid))
}

fn assert_small(memory: Option<&Memory>) {
    if let Some(grown) = memory.map(Memory::grown) {
        assert!(grown < GROWS_AT_MOST, "the gateway grew by {grown} KiB");
    }
}

ways!(a_reader_that_stops_makes_the_app_stop as a_slow_reader_of_http_1, App::http());
ways!(a_reader_that_stops_makes_the_app_stop as a_slow_reader_of_http_2, App::h2c());
async fn a_reader_that_stops_makes_the_app_stop(target: Target) {
    const LEN: u64 = 200 * MIB;
    assert_eq!(target.stat("sent").await, 0);
    let memory = watch(&target);
    let mut client = Raw::connect(&target).await;
    client.get(&target, &format!("/bytes/{LEN}")).await;
    assert_eq!(client.head().await.header("content-length"), LEN.to_string());
    let sent = settled("the app to stop", async || target.stat("sent").await).await;
    assert!(sent < HELD_AT_MOST, "{sent} bytes went to a reader that reads none");
    let mut checker = Checker::default();
    while checker.count < LEN {
        checker.take(&client.some().await.expect("all of it"));
    }
    assert!(checker.intact());
    assert_eq!((checker.count, target.stat("sent").await), (LEN, LEN));
    assert_small(memory.as_ref());
}

ways!(an_app_that_does_not_read_makes_the_writer_stop as a_slow_app_of_http_1, App::http());
ways!(an_app_that_does_not_read_makes_the_writer_stop as a_slow_app_of_http_2, App::h2c());
async fn an_app_that_does_not_read_makes_the_writer_stop(target: Target) {
    const LEN: u64 = 200 * MIB;
    assert_eq!(target.stat("received").await, 0);
    let memory = watch(&target);
    let mut client = Raw::connect(&target).await;
    client
        .send(format!("POST /sink/next HTTP/1.1\r\nHost: {}\r\nContent-Length: {LEN}\r\n\r\n", target.host))
        .await;
    target.until("waiting", |waiting| waiting == 1).await;
    let mut sent = 0;
    loop {
        let taken = client.try_send(&pattern::at(sent, LEN - sent)).await as u64;
        if taken == 0 {
            break;
        }
        sent += taken;
        assert!(sent < HELD_AT_MOST, "{sent} bytes were taken for an app that reads none");
    }
    target.next().await;
    while sent < LEN {
        let next = pattern::at(sent, LEN - sent);
        client.send(&next).await;
        sent += next.len() as u64;
    }
    let (head, sunk) = client.json().await;
    assert_eq!((head.status, &sunk["count"], &sunk["intact"]), (200, &LEN.into(), &true.into()));
    assert_small(memory.as_ref());
}
