//! Streamed responses of the test app: each has a task that feeds it, as fast as the client reads.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::BodyExt;
use rouse_e2e::body::{self, Feed, Unread};
use rouse_e2e::{Error, pattern};

use crate::routes::{Answer, Asked};
use crate::state::{InFlight, State};

/// Answers at once with `response`, whose body `feeder` feeds; the request is in flight until that ends.
pub(crate) fn fed<F>(
    state: &State,
    in_flight: InFlight,
    response: http::response::Builder,
    feeder: impl FnOnce(Feed) -> F,
) -> Answer
where
    F: Future<Output = Result<(), Unread>> + Send + 'static,
{
    let (feed, body) = body::channel();
    let feeding = feeder(feed);
    state.tasks.spawn(async move {
        // Ignored: the reader may stop before the end.
        let _unimportant = feeding.await;
        drop(in_flight);
    });
    Ok(response.body(body)?)
}

/// Sends back what comes, as it comes: data and trailers.
pub(crate) fn echo(state: &Arc<State>, request: Asked, in_flight: InFlight) -> Answer {
    let mut response = Response::builder();
    for name in [header::TRAILER, header::CONTENT_TYPE] {
        if let Some(value) = request.headers().get(&name) {
            response = response.header(name, value);
        }
    }
    let counted = Arc::clone(state);
    fed(state, in_flight, response, async move |feed: Feed| {
        let mut incoming = request.into_body();
        while let Some(frame) = incoming.frame().await {
            let Ok(frame) = frame else { return feed.abort("the request was cut").await };
            counted.received(frame.data_ref().map_or(0, |data| data.len() as u64));
            feed.frame(frame).await?;
        }
        Ok(())
    })
}

/// `chunks` chunks of the pattern with `size` bytes each.
pub(crate) fn chunked(state: &Arc<State>, in_flight: InFlight, chunks: u64, size: u64) -> Answer {
    fed(state, in_flight, Response::builder(), async move |feed: Feed| {
        for chunk in 0..chunks {
            feed.data(pattern::at(chunk * size, size)).await?;
        }
        Ok(())
    })
}

/// A body with trailers.
pub(crate) fn trailers(state: &State, in_flight: InFlight) -> Answer {
    let response = Response::builder().header(header::TRAILER, "x-checksum, x-colour");
    fed(state, in_flight, response, async |feed: Feed| {
        feed.data("before the trailers\n").await?;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("12345"));
        trailers.insert("x-colour", HeaderValue::from_static("blue"));
        feed.trailers(trailers).await
    })
}

/// A body of `len` bytes that ends after half of it.
pub(crate) fn cut(state: &State, in_flight: InFlight, len: u64) -> Answer {
    let response = Response::builder().header(header::CONTENT_LENGTH, len);
    fed(state, in_flight, response, async move |feed: Feed| {
        feed.data(pattern::at(0, len / 2)).await?;
        feed.abort("cut").await
    })
}

/// When the next event comes.
pub(crate) enum Pace {
    /// After a time.
    Every(Duration),
    /// At each request for `/next`.
    OnDemand,
}

impl FromStr for Pace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(if text == "next" { Self::OnDemand } else { Self::Every(Duration::from_millis(text.parse()?)) })
    }
}

/// Server-sent events, the first at once.
pub(crate) fn events(state: &Arc<State>, in_flight: InFlight, events: u32, pace: Pace) -> Answer {
    let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
    let paced = Arc::clone(state);
    fed(state, in_flight, response, async move |feed: Feed| {
        for event in 1..=events {
            feed.data(format!("data: {event}\n\n")).await?;
            match pace {
                _ if event == events => {}
                Pace::Every(interval) => tokio::time::sleep(interval).await,
                Pace::OnDemand => tokio::select! {
                    () = paced.next() => {}
                    () = feed.unread() => {
                        paced.cancelled();
                        return Err(Unread);
                    }
                },
            }
        }
        Ok(())
    })
}
