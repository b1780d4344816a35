//! gRPC: the four kinds of calls, statuses and cancellation.

use http::HeaderValue;
use rouse_e2e::body::Feed;
use rouse_e2e::client::grpc::{Grpc, framed};
use rouse_e2e::config::App;
use rouse_e2e::pattern;
use rouse_e2e::target::Target;
use rouse_e2e::ways;

ways!(a_unary_call_is_answered, App::h2c());
async fn a_unary_call_is_answered(target: Target) {
    let mut client = Grpc::connect(&target).await;
    for message in [&b"hello"[..], b"", &pattern::whole(100_000)] {
        let mut reply = client.unary("/test.Echo/Unary", message).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.headers["content-type"], "application/grpc");
        assert_eq!(reply.rest().await, [message]);
        assert_eq!(reply.trailers().get("grpc-status"), Some(&HeaderValue::from_static("0")));
        assert_eq!(reply.outcome().await, (Some(0), String::new()));
    }
}

ways!(a_failed_call_keeps_its_status_and_message, App::h2c());
async fn a_failed_call_keeps_its_status_and_message(target: Target) {
    let mut client = Grpc::connect(&target).await;
    let mut reply = client.unary("/test.Echo/Fail", b"x").await;
    assert_eq!(reply.outcome().await, (Some(5), "nothing of that name".to_owned()));
    let mut reply = client.unary("/test.Echo/Nothing", b"x").await;
    assert_eq!(reply.outcome().await, (Some(12), "no such method".to_owned()));
}

async fn send(feed: &Feed, message: &str) {
    feed.data(framed(message.as_bytes())).await.unwrap();
}

ways!(a_client_streams, App::h2c());
async fn a_client_streams(target: Target) {
    let mut client = Grpc::connect(&target).await;
    let (feed, mut reply) = client.call("/test.Echo/Client").await;
    for message in ["a", "bc", "", "def"] {
        send(&feed, message).await;
    }
    drop(feed);
    assert_eq!(reply.rest().await, ["abcdef"]);
    assert_eq!(reply.outcome().await.0, Some(0));
}

ways!(a_server_streams, App::h2c());
async fn a_server_streams(target: Target) {
    let mut client = Grpc::connect(&target).await;
    let mut reply = client.unary("/test.Echo/Server", b"one two three").await;
    assert_eq!(reply.rest().await, ["one", "two", "three"]);
    assert_eq!(reply.outcome().await.0, Some(0));
}

ways!(both_stream_in_turn, App::h2c());
async fn both_stream_in_turn(target: Target) {
    let mut client = Grpc::connect(&target).await;
    let (feed, mut reply) = client.call("/test.Echo/Bidi").await;
    for message in ["ping", "pong", "and again"] {
        send(&feed, message).await;
        // The next message is sent only after this reply: the gateway does not buffer the stream.
        assert_eq!(reply.next().await.unwrap(), message);
    }
    drop(feed);
    assert_eq!(reply.outcome().await.0, Some(0));
}

ways!(the_pod_sees_that_a_call_was_cancelled, App::h2c());
async fn the_pod_sees_that_a_call_was_cancelled(target: Target) {
    let mut client = Grpc::connect(&target).await;
    let (feed, mut reply) = client.call("/test.Echo/Hang").await;
    assert_eq!(reply.next().await.unwrap(), "one, and no more");
    assert_eq!(target.stat("cancelled").await, 0);
    drop((feed, reply));
    target.until("cancelled", |calls| calls == 1).await;
    let mut reply = client.unary("/test.Echo/Unary", b"still here").await;
    assert_eq!(reply.outcome().await.0, Some(0), "other calls on the connection continue");
}

ways!(readiness_by_grpc, App::h2c().readiness("{grpc: \"\"}"));
async fn readiness_by_grpc(target: Target) {
    let mut reply = Grpc::connect(&target).await.unary("/grpc.health.v1.Health/Check", b"").await;
    assert_eq!(reply.rest().await, [&[8, 1][..]]);
    assert_eq!(reply.outcome().await.0, Some(0));
}
