//! The admin API handler for an app's output: the kept lines as text, or with `follow` an endless stream.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse;
use hyper::body::Frame;
use rouse_local::output::{Batch, Follower, Line};

use super::DataPlaneView;
use super::app_control::{Named, app, unknown};
use super::error_response::Refusal;
use super::server::Endless;

pub(super) async fn logs(
    State(services): State<Arc<DataPlaneView>>,
    Path((namespace, name)): Named,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Refusal> {
    let follow = follow(&query)?;
    let (_, apps) = app(&services, &namespace, &name)?;
    let log = apps.log(&name).ok_or_else(|| unknown(&services, &namespace, &name))?;
    let body = if follow {
        Body::new(Following { next: next(log.follow()) })
    } else {
        let mut text = String::new();
        for line in &log.tail() {
            write_line(&mut text, line);
        }
        Body::from(text)
    };
    let endless = follow.then_some(Extension(Endless));
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")], endless, body))
}

fn follow(query: &[(String, String)]) -> Result<bool, Refusal> {
    let mut follow = false;
    for (key, value) in query {
        follow = match (key.as_str(), value.as_str()) {
            ("follow", "true" | "1" | "") => true,
            ("follow", "false" | "0") => false,
            _ => {
                return Err(Refusal::bad_request(format!(
                    "{key}={value} is not allowed: expected follow=true or follow=false"
                )));
            }
        };
    }
    Ok(follow)
}

fn write_line(text: &mut String, Line { pod, text: said, .. }: &Line) {
    // Writing to a String cannot fail.
    writeln!(text, "{pod} | {said}").ok();
}

/// A response body: the kept lines, then each new line. It does not own the log, so the body ends when the app is removed.
struct Following {
    next: Next,
}

type Next = Pin<Box<dyn Future<Output = (Follower, Option<Batch>)> + Send>>;

fn next(mut follower: Follower) -> Next {
    Box::pin(async move {
        let batch = follower.next().await;
        (follower, batch)
    })
}

impl hyper::body::Body for Following {
    type Data = Bytes;
    type Error = Infallible;

    /// Sends each batch as one frame: a frame per line would cost one write for each line of a chatty pod.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (follower, batch) = ready!(self.next.as_mut().poll(context));
        let Some(Batch { missed, lines }) = batch else { return Poll::Ready(None) };
        self.next = next(follower);
        let mut text = String::new();
        if missed > 0 {
            writeln!(text, "… {missed} lines not shown: they came faster than they were read").ok();
        }
        for line in &lines {
            write_line(&mut text, line);
        }
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}
