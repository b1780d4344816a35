//! `WebSocket` and gRPC over h2c, also as the first request to an app at zero.

use futures_util::{SinkExt, StreamExt};
use rouse_e2e::client::grpc::{Grpc, framed};
use rouse_e2e::client::websocket;
use rouse_e2e::wait::{patiently, within};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::test_namespace::TestNamespace;

pub(crate) const TRIALS: &[Case] = &[trial!(websockets_and_grpc_wake_an_app_and_talk_to_it)];

async fn websockets_and_grpc_wake_an_app_and_talk_to_it(space: TestNamespace) {
    let ports = [
        json!({ "name": "http", "port": 80, "targetPort": "http" }),
        json!({ "name": "grpc", "port": 81, "targetPort": "http", "appProtocol": "kubernetes.io/h2c" }),
    ];
    space.run(&App::new("app").service_ports(&ports)).await;
    for port in ["http", "grpc"] {
        space.apply(space.route(port).service("app").port_name(port).object()).await;
    }
    let gateway = space.gateway().await;
    let (over_http, over_grpc) = (gateway.target(&space.host("http")), gateway.target(&space.host("grpc")));
    // Both arrive at zero and are held.
    let mut client = Grpc::connect(&over_grpc).await;
    let ((mut socket, response), mut reply) =
        tokio::join!(websocket::connect(&over_http, "/ws"), client.unary("/test.Echo/Unary", b"hello"));

    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["x-rouse-cold-start"], "true");
    for message in [Message::text("hello"), Message::binary(vec![0, 1, 255])] {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(within("the echo", socket.next()).await.unwrap().unwrap(), message);
    }
    socket.close(None).await.unwrap();

    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["x-rouse-cold-start"], "true");
    assert_eq!(reply.rest().await, ["hello"]);
    assert_eq!(reply.outcome().await, (Some(0), String::new()));
    // Each message has come back before the next is sent.
    let (feed, mut reply) = client.call("/test.Echo/Bidi").await;
    for message in ["one", "two", "three"] {
        feed.data(framed(message.as_bytes())).await.unwrap();
        assert_eq!(reply.next().await.as_deref(), Some(message.as_bytes()));
    }
    drop(feed);
    assert_eq!(reply.outcome().await, (Some(0), String::new()));
    let mut failed = client.unary("/test.Echo/Fail", b"x").await;
    assert_eq!(failed.outcome().await, (Some(5), "nothing of that name".to_owned()));

    let [pod] = &space.ready_pods("app", 1).await[..] else { panic!("one pod") };
    let log = patiently("all requests in the pod's log", async || {
        Some(space.requests_seen_by(&pod.name).await).filter(|log| log.len() >= 4)
    })
    .await;
    for line in &log {
        let expected =
            if line["uri"].as_str().unwrap().contains("test.Echo") { "HTTP/2.0" } else { "HTTP/1.1" };
        assert_eq!(line["version"], expected, "{line}");
    }
    gateway.stop().await;
}
