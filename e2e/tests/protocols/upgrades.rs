//! Upgraded connections: `WebSocket`, and another protocol.

use futures_util::{SinkExt, StreamExt};
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::websocket;
use rouse_e2e::config::App;
use rouse_e2e::pattern;
use rouse_e2e::target::Target;
use rouse_e2e::wait::within;
use rouse_e2e::ways;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

ways!(a_websocket_talks, App::http());
async fn a_websocket_talks(target: Target) {
    let (mut socket, response) = websocket::connect(&target, "/ws").await;
    assert_eq!(response.status(), 101);
    let mega: Vec<u8> = pattern::whole(1024 * 1024).into();
    for message in
        [Message::text("hello"), Message::binary(vec![0, 1, 255]), Message::text(""), Message::binary(mega)]
    {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(within("the echo", socket.next()).await.unwrap().unwrap(), message);
    }
    socket.send(Message::Ping("are you there".into())).await.unwrap();
    let pong = within("the pong", socket.next()).await.unwrap().unwrap();
    assert_eq!(pong, Message::Pong("are you there".into()));
    let goodbye = CloseFrame { code: CloseCode::Away, reason: "bye".into() };
    socket.close(Some(goodbye.clone())).await.unwrap();
    let close = within("the close frame", socket.next()).await.unwrap().unwrap();
    assert_eq!(close, Message::Close(Some(goodbye)));
    assert!(within("the end", socket.next()).await.is_none());
}

/// A request for an upgrade to `protocol` at a path that speaks rot13.
fn upgrade_to(protocol: &str, target: &Target) -> String {
    format!(
        "GET /upgrade/rot13 HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n",
        target.host
    )
}

ways!(an_upgrade_of_another_kind_passes, App::http());
async fn an_upgrade_of_another_kind_passes(target: Target) {
    let mut client = Raw::connect(&target).await;
    // The first bytes arrive with the request; they already belong to the new protocol.
    client.send(upgrade_to("rot13", &target) + "Hello").await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("upgrade")), (101, "rot13"));
    assert_eq!(client.exactly(5).await, "Uryyb");
    client.send("Why do they call it ovaltine?").await;
    assert_eq!(client.exactly(29).await, "Jul qb gurl pnyy vg binygvar?");
    // After a half-close, data in flight still arrives; then the other half closes.
    client.send("end").await;
    client.finish().await;
    assert_eq!(client.ended().await, "raq");
}

ways!(an_upgrade_that_the_app_refuses_is_an_answer_like_others, App::http());
async fn an_upgrade_that_the_app_refuses_is_an_answer_like_others(target: Target) {
    let mut client = Raw::connect(&target).await;
    client.send(upgrade_to("morse", &target)).await;
    let (head, body) = client.response().await;
    assert_eq!((head.status, &*body), (426, &b"this path speaks rot13\n"[..]));
}
