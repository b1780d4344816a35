//! Upgraded connections of the test app: a WebSocket echo and the `rot13` protocol.

use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rouse_e2e::{Error, body};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::routes::{Answer, Asked};
use crate::state::{InFlight, State};

/// A WebSocket that sends back every text and binary message.
pub(crate) fn websocket(state: &State, request: Asked, in_flight: InFlight) -> Answer {
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY) else {
        return refuse("this path is a WebSocket\n");
    };
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))?;
    let mut response = switch("websocket")?;
    response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    talk(state, request, in_flight, async |io| {
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        while let Some(message) = socket.next().await {
            let message = message?;
            if message.is_text() || message.is_binary() {
                socket.send(message).await?;
            }
        }
        Ok(())
    });
    Ok(response)
}

/// The made-up protocol `rot13`: each letter comes back shifted by thirteen.
pub(crate) fn rot13(state: &State, request: Asked, in_flight: InFlight) -> Answer {
    if request.headers().get(header::UPGRADE).is_none_or(|protocol| protocol != "rot13") {
        return refuse("this path speaks rot13\n");
    }
    talk(state, request, in_flight, async |mut io| {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = io.read(&mut buffer).await?;
            if count == 0 {
                // Everything has been answered: close the sending side as well.
                return Ok(io.shutdown().await?);
            }
            let turned: Vec<u8> = buffer[..count].iter().copied().map(turn).collect();
            io.write_all(&turned).await?;
            io.flush().await?;
        }
    });
    switch("rot13")
}

fn turn(byte: u8) -> u8 {
    match byte {
        b'a'..=b'z' => (byte - b'a' + 13) % 26 + b'a',
        b'A'..=b'Z' => (byte - b'A' + 13) % 26 + b'A',
        other => other,
    }
}

fn talk<F>(
    state: &State,
    request: Asked,
    in_flight: InFlight,
    talk: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    state.tasks.spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        // Ignored: a test sees from the client how the connection ends.
        let _unimportant = talk(TokioIo::new(upgraded)).await;
        drop(in_flight);
    });
}

fn switch(protocol: &'static str) -> Answer {
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, protocol);
    Ok(response.body(body::empty())?)
}

fn refuse(why: &'static str) -> Answer {
    Ok(Response::builder().status(StatusCode::UPGRADE_REQUIRED).body(body::full(why))?)
}
