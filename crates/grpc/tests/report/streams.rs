//! What ends a stream: the rules, limits and deadlines of the server, with the status that says why.

use std::time::Duration;

use rouse_core::load_meter::LoadKey;
use tokio::time::{Instant, sleep_until};
use tonic::Code;

use crate::harness::{Controller, Scripted, Told, cart, client_stream, hello, load, reporter, token};
use crate::network::{Network, address};
use crate::proto::controller_message::Kind as Command;
use crate::proto::load::Key;
use crate::proto::reporter_message::Kind;
use crate::proto::{Load, Loads, Parked};

fn scene() -> (Network, Controller) {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    (network, controller)
}

fn loads(loads: Vec<Load>) -> Loads {
    Loads { loads, ..Loads::default() }
}

fn complete(all: Vec<Load>) -> Loads {
    Loads { complete: true, ..loads(all) }
}

async fn open(network: &Network) -> Scripted {
    Scripted::open(network, &token("gateway-1")).await.unwrap()
}

/// Sends messages of which the last one is against the rules. The stream ends with the reason, and nothing else changes.
async fn ends(what: &str, messages: Vec<Kind>, (code, reason, result): (Code, &str, &str)) {
    let (network, controller) = scene();
    let stream = open(&network).await;
    for message in messages {
        stream.send(message).await;
    }
    let (found, text) = stream.end().await;
    assert_eq!((found, text.contains(reason)), (code, true), "{what}: {text}");
    assert_eq!(controller.results(result), 1, "{what}");
    let heard = |told: &Told| matches!(told, Told::StreamEvent { .. } | Told::Parked { .. });
    assert!(!controller.sink.all().iter().any(heard), "{what}: {:?}", controller.sink.all());
    assert_eq!(controller.server.connected().len(), 0, "{what}");
    // Others are served.
    let other = Scripted::open(&network, &token("gateway-2")).await.unwrap();
    other.begin().await;
    controller.sink.until("the other reports", |sink| !sink.updates("gateway-2").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_at_the_wrong_time_ends_its_stream_with_the_reason_and_changes_nothing() {
    let (hello, cart) = (|| Kind::Hello(hello()), || vec![load("cart", 9, 9)]);
    let continued =
        |sent_at_micros| Kind::Loads(Loads { sent_at_micros, continues: true, ..complete(cart()) });
    let last = |sent_at_micros| Kind::Loads(Loads { sent_at_micros, ..complete(cart()) });
    for (what, messages, reason) in [
        ("loads first", vec![last(0)], "loads before hello"),
        ("two hellos", vec![hello(), hello()], "a second hello"),
        ("changes first", vec![hello(), Kind::Loads(loads(cart()))], "before the complete state"),
        (
            "changes inside the state",
            vec![hello(), continued(0), Kind::Loads(loads(cart()))],
            "before the end of the complete state",
        ),
        ("a clock that goes back", vec![hello(), continued(2), last(1)], "clock went back"),
    ] {
        ends(what, messages, (Code::FailedPrecondition, reason, "out_of_order")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_too_large_ends_its_stream_with_the_limit_and_changes_nothing() {
    let long = Load { key: Some(Key::Route("r".repeat(300_000))), ..Load::default() };
    for (what, all, reason, result) in [
        (
            "too many entries",
            vec![load("cart", 9, 9); 4097],
            "4097 entries; at most 4096 are allowed",
            "too_many_entries",
        ),
        ("too long", vec![long], "more than 262144 bytes", "oversized"),
    ] {
        let messages = vec![Kind::Hello(hello()), Kind::Loads(complete(all))];
        ends(what, messages, (Code::ResourceExhausted, reason, result)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_cannot_be_true_ends_its_stream_with_the_reason_and_changes_nothing() {
    let key = |key| Load { key: Some(key), ..Load::default() };
    let route = |name: &str| complete(vec![key(Key::Route(name.into()))]);
    let parked = Parked { service: "/".into(), id: 1 };
    for (what, bad, reason) in [
        (
            "no Service",
            complete(vec![key(Key::Service("cart".into()))]),
            "\"cart\" is not the name of a Service",
        ),
        ("no route", route(""), "a route has a name"),
        ("a long route", route(&"r".repeat(513)), "more than 512 bytes"),
        ("a route with a line end", route("a\nb"), "control characters"),
        (
            "a reading before the start",
            complete(vec![Load { age_micros: 1, ..load("cart", 9, 9) }]),
            "1 µs before the message was sent",
        ),
        (
            "no Service parked",
            Loads { parked: vec![parked], ..complete(vec![]) },
            "is not the name of a Service",
        ),
    ] {
        let messages = vec![Kind::Hello(hello()), Kind::Loads(bad)];
        ends(what, messages, (Code::InvalidArgument, reason, "malformed")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_message_end_the_stream() {
    let (network, controller) = scene();
    let channel = client_stream(network.connect(address(1)).unwrap()).await;
    let (code, text) = Scripted::raw(channel, &token("gateway-1"), &[0, 0, 0, 0, 3, 0x0a, 0xff, 0xff]).await;
    assert_eq!(code, Code::InvalidArgument, "{text}");
    assert_eq!(controller.results("malformed"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_must_say_hello_and_its_state_in_time_and_then_something_each_ten_seconds() {
    let (network, controller) = scene();
    let began = Instant::now();
    let (code, text) = open(&network).await.end().await;
    assert_eq!((code, text.contains("no hello within 5 s")), (Code::DeadlineExceeded, true), "{text}");
    assert_eq!(began.elapsed().as_secs(), 5);

    let (stream, began) = (open(&network).await, Instant::now());
    stream.send(Kind::Hello(hello())).await;
    let never_ends = Loads { continues: true, ..complete(vec![load("cart", 1, 1)]) };
    for _ in 0..6 {
        stream.send(Kind::Loads(never_ends.clone())).await;
        sleep_until(Instant::now() + Duration::from_secs(5)).await;
    }
    let (code, text) = stream.end().await;
    assert_eq!(
        (code, text.contains("no complete state within 30 s")),
        (Code::DeadlineExceeded, true),
        "{text}"
    );
    assert_eq!(began.elapsed().as_secs(), 30);
    assert!(controller.sink.updates("gateway-1").is_empty(), "half a state is none");

    let stream = open(&network).await;
    stream.begin().await;
    for _ in 0..3 {
        sleep_until(Instant::now() + Duration::from_secs(9)).await;
        stream.send(Kind::Loads(loads(vec![]))).await;
    }
    let began = Instant::now();
    let (code, text) = stream.end().await;
    assert_eq!((code, text.contains("no message for 10 s")), (Code::DeadlineExceeded, true), "{text}");
    assert_eq!(began.elapsed().as_secs(), 10);
    assert_eq!((controller.results("late"), controller.results("silent")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_messages_ends_the_stream_and_a_backlog_of_some_seconds_does_not() {
    let (network, controller) = scene();
    let stream = open(&network).await;
    stream.begin().await;
    for _ in 0..1000 {
        stream.send(Kind::Loads(loads(vec![]))).await;
    }
    controller.sink.until("all have arrived", |sink| sink.updates("gateway-1").len() == 1001).await;
    // The stream ends before all are sent.
    let mut sent = 0;
    while stream.is_sent(Kind::Loads(loads(vec![]))).await {
        sent += 1;
        assert!(sent < 10_000);
    }
    assert!(sent >= 500, "{sent}");
    let (code, text) = stream.end().await;
    assert_eq!((code, text.contains("messages per second")), (Code::ResourceExhausted, true), "{text}");
    assert_eq!(controller.results("too_fast"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_newer_stream_of_a_pod_replaces_the_older_one() {
    let (network, controller) = scene();
    let (older, newer) = (open(&network).await, open(&network).await);
    older.send(Kind::Hello(hello())).await;
    older.send(Kind::Loads(complete(vec![load("cart", 1, 1)]))).await;
    controller.sink.until("the older reports", |sink| sink.updates("gateway-1").len() == 1).await;
    newer.send(Kind::Hello(hello())).await;
    newer.send(Kind::Loads(complete(vec![load("cart", 2, 2)]))).await;
    let (code, text) = older.end().await;
    assert_eq!((code, text.contains("newer stream of the same pod")), (Code::Aborted, true), "{text}");
    let key = LoadKey::Service(cart());
    controller.sink.until("the newer reports", |sink| sink.present(&key) == 2).await;
    assert_eq!(controller.server.connected().len(), 1);
    let left = |told: &Told| matches!(told, Told::Left { .. });
    assert!(!controller.sink.all().iter().any(left), "the reporter is connected all the time");
    drop(newer);
    controller.sink.until("it has left", |sink| sink.all().iter().any(left)).await;
    assert_eq!(controller.results("replaced"), 1);
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_of_reporters_others_are_refused_and_those_that_are_connected_may_reconnect() {
    let network = Network::default();
    let controller = Controller::with(|settings| settings.reporters = 2);
    controller.up(&network, 1);
    let mut connected = Vec::new();
    for name in ["gateway-1", "gateway-2"] {
        let stream = Scripted::open(&network, &token(name)).await.unwrap();
        stream.begin().await;
        controller.sink.until("it reports", |sink| !sink.updates(name).is_empty()).await;
        connected.push(stream);
    }
    let third = Scripted::open(&network, &token("gateway-3")).await.unwrap();
    third.begin().await;
    let (code, text) = third.end().await;
    assert_eq!((code, text.contains("2 reporters are connected")), (Code::ResourceExhausted, true), "{text}");
    let again = open(&network).await;
    again.begin().await;
    controller.sink.until("it reports again", |sink| sink.updates("gateway-1").len() == 2).await;
    assert_eq!(controller.results("too_many_reporters"), 1);
    // Streams that say nothing are limited too.
    let mut silent = Vec::new();
    loop {
        match Scripted::open(&network, &token("gateway-4")).await {
            Ok(stream) => silent.push(stream),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                break;
            }
        }
        assert!(silent.len() < 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_stream_is_closed() {
    let (network, _controller) = scene();
    let channel = client_stream(network.connect(address(1)).unwrap()).await;
    let began = Instant::now();
    channel.closed().await;
    let elapsed = began.elapsed();
    assert!(elapsed >= Duration::from_secs(10) && elapsed <= Duration::from_secs(25), "after {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_speaks_keeps_no_connection() {
    use tokio::io::AsyncReadExt as _;

    let (network, _controller) = scene();
    let (mut silent, began) = (network.connect(address(1)).unwrap(), Instant::now());
    let mut bytes = [0; 64];
    assert_eq!(silent.read(&mut bytes).await.unwrap_or_default(), 0);
    assert_eq!(began.elapsed().as_secs(), 5, "the handshake has a deadline");
}

#[tokio::test(start_paused = true)]
async fn the_welcome_comes_first_and_says_the_version() {
    let (network, _controller) = scene();
    let mut stream = open(&network).await;
    stream.begin().await;
    let first = stream.incoming.message().await.unwrap().unwrap();
    let Some(Command::Welcome(welcome)) = first.kind else { panic!("{first:?}") };
    assert_eq!(welcome.version, "0.2.0");
}

#[tokio::test(start_paused = true)]
async fn a_reporter_that_ends_its_stream_gets_ok() {
    let (network, controller) = scene();
    let stream = open(&network).await;
    stream.begin().await;
    controller.sink.until("it reports", |sink| !sink.updates("gateway-1").is_empty()).await;
    assert_eq!(stream.finish().await, (Code::Ok, String::new()));
    controller
        .sink
        .until("it has left", |sink| sink.all().contains(&Told::Left { from: reporter("gateway-1") }))
        .await;
    assert_eq!(controller.results("left"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_exist_is_unimplemented() {
    let (network, _controller) = scene();
    let channel = client_stream(network.connect(address(1)).unwrap()).await;
    let (code, _) = Scripted::call(channel, "/rouse.report.v2.LoadReports/Report", None, &[]).await;
    assert_eq!(code, Code::Unimplemented);
}
