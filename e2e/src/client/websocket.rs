//! A WebSocket client: tungstenite over a plain connection.

use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::target::Target;
use crate::wait::within;

/// Connects to `path` and performs the WebSocket handshake.
pub async fn connect(target: &Target, path: &str) -> (WebSocketStream<TcpStream>, Response) {
    let stream = within("connect", TcpStream::connect(target.address)).await;
    let stream = stream.unwrap_or_else(|error| panic!("cannot connect to {}: {error}", target.address));
    let url = format!("ws://{}{path}", target.host);
    let shaken = tokio_tungstenite::client_async_with_config(url, stream, Some(WebSocketConfig::default()));
    within("the handshake", shaken).await.unwrap_or_else(|error| panic!("no WebSocket at {path}: {error}"))
}
