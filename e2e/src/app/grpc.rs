//! A gRPC service without generated code: messages are arbitrary bytes.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use rouse_e2e::Error;
use rouse_e2e::body::Feed;
use rouse_e2e::client::grpc::{Messages, framed};

use crate::routes::{Answer, Asked};
use crate::state::{InFlight, State};
use crate::streams;

/// `test.Echo`. Every method ends with grpc-status 0 but `Fail` (5, with a message) and `Hang` (never).
pub(crate) fn echo(state: &Arc<State>, request: Asked, in_flight: InFlight, method: &str) -> Answer {
    let method = method.to_owned();
    let shared = Arc::clone(state);
    let response = Response::builder().header(header::CONTENT_TYPE, "application/grpc");
    streams::fed(state, in_flight, response, async move |feed: Feed| {
        let mut messages = Messages::new(request.into_body());
        let done = match &*method {
            "Unary" | "Bidi" => each(&mut messages, &feed).await,
            "Client" => all(&mut messages, &feed).await,
            "Server" => split(&mut messages, &feed).await,
            "Fail" => return feed.trailers(status("5", "nothing of that name")).await,
            "Hang" => {
                feed.data(framed(b"one, and no more")).await?;
                feed.unread().await;
                shared.cancelled();
                return Ok(());
            }
            _ => return feed.trailers(status("12", "no such method")).await,
        };
        match done {
            Ok(()) => feed.trailers(status("0", "")).await,
            Err(error) => {
                shared.cancelled();
                feed.trailers(status("13", &error.to_string())).await
            }
        }
    })
}

/// Sends each message back at once.
async fn each(messages: &mut Messages, feed: &Feed) -> Result<(), Error> {
    while let Some(message) = messages.next().await? {
        feed.data(framed(&message)).await.map_err(|_| "cancelled")?;
    }
    Ok(())
}

/// Sends all messages back as one.
async fn all(messages: &mut Messages, feed: &Feed) -> Result<(), Error> {
    let mut whole = Vec::new();
    while let Some(message) = messages.next().await? {
        whole.extend_from_slice(&message);
    }
    Ok(feed.data(framed(&whole)).await.map_err(|_| "cancelled")?)
}

/// Sends each word of a message back as a message.
async fn split(messages: &mut Messages, feed: &Feed) -> Result<(), Error> {
    let message = messages.next().await?.unwrap_or_default();
    for word in message.split(|byte| *byte == b' ') {
        feed.data(framed(word)).await.map_err(|_| "cancelled")?;
    }
    Ok(())
}

/// `grpc.health.v1`: serving. The message is `status: SERVING`.
pub(crate) fn health(state: &State, request: Asked, in_flight: InFlight) -> Answer {
    let response = Response::builder().header(header::CONTENT_TYPE, "application/grpc");
    streams::fed(state, in_flight, response, async move |feed: Feed| {
        drop(request);
        feed.data(framed(&Bytes::from_static(&[0x08, 0x01]))).await?;
        feed.trailers(status("0", "")).await
    })
}

fn status(code: &'static str, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(code));
    if let Ok(message) = HeaderValue::from_str(message) {
        trailers.insert("grpc-message", message);
    }
    trailers
}
