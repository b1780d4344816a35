//! What an app's pods print, as a text that may never end.

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
use rouse_local::output::Line;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::Panel;
use super::answer::Refusal;
use super::server::Endless;
use super::steer::{Named, app, unknown};

pub(super) async fn logs(
    State(panel): State<Arc<Panel>>,
    Path((namespace, name)): Named,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Refusal> {
    let follow = follow(&query)?;
    app(&panel, &namespace, &name)?;
    let log = panel.apps.log(&name).ok_or_else(|| unknown(&panel, &namespace, &name))?;
    let (before, live) = log.follow();
    let mut text = String::new();
    for line in &before {
        write_line(&mut text, line);
    }
    let body = if follow { Body::new(Following::new(text, live)) } else { Body::from(text) };
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
                    "{key}={value}: allowed is follow=true or follow=false"
                )));
            }
        };
    }
    Ok(follow)
}

fn write_line(text: &mut String, Line { pod, text: said, .. }: &Line) {
    // A String takes everything.
    writeln!(text, "{pod} | {said}").ok();
}

/// The kept lines, then every line as it comes. Has no hold on the log: the text ends when the app is gone.
struct Following {
    before: Option<String>,
    next: Next,
}

type Next = Pin<Box<dyn Future<Output = (Receiver<Line>, Result<Line, RecvError>)> + Send>>;

impl Following {
    fn new(before: String, live: Receiver<Line>) -> Self {
        Self { before: Some(before).filter(|text| !text.is_empty()), next: next(live) }
    }
}

fn next(mut live: Receiver<Line>) -> Next {
    Box::pin(async move {
        let received = live.recv().await;
        (live, received)
    })
}

impl hyper::body::Body for Following {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(before) = self.before.take() {
            return Poll::Ready(Some(Ok(Frame::data(before.into()))));
        }
        let (mut live, mut received) = ready!(self.next.as_mut().poll(context));
        let mut text = String::new();
        // All that is there in one frame, or a chatty pod costs a write for each line; the log's own bound on
        // how far one may lag keeps it small.
        loop {
            match received {
                Ok(printed) => write_line(&mut text, &printed),
                Err(RecvError::Lagged(count)) => {
                    writeln!(text, "rouse | {count} lines are missing: they came faster than they were read")
                        .ok();
                }
                Err(RecvError::Closed) if text.is_empty() => return Poll::Ready(None),
                Err(RecvError::Closed) => break,
            }
            let Ok(next) = live.try_recv() else { break };
            received = Ok(next);
        }
        self.next = next(live);
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}
