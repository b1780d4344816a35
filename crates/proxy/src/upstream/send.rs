//! Sends one request on one connection, and waits for the head of the response until its deadline.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::ext::on_informational;
use rouse_core::time::Moment;
use tokio::sync::oneshot;

use super::body::{BodySource, RequestBody};
use super::context::{AttemptContext, UpstreamContext};
use super::pool::PooledConnection;
use crate::error::Failure;
use crate::runtime::before;

/// A pod that does not support `Expect` never sends 100. After this time the client gets a 100 all the same.
const EXPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A request that got no response.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) failure: Failure,
    /// The pod had the whole request, and enough time to answer it.
    pub(super) by_pod: bool,
}

impl From<Failure> for Unanswered {
    /// Not the pod's fault.
    fn from(failure: Failure) -> Self {
        Self { failure, by_pod: false }
    }
}

pub(super) type Sent = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

/// Sends the request and waits for the head of the response until its deadline.
pub(super) async fn send(
    context: &AttemptContext<'_>,
    source: &Rc<BodySource>,
    link: &mut PooledConnection,
    request: Request<RequestBody>,
) -> Result<Sent, Unanswered> {
    let expects = request.headers().get(header::EXPECT);
    if expects.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Box::pin(expecting(context, source, link, request)).await;
    }
    if source.is_done() {
        return within(context, source, link.send(request)).await;
    }
    // While a body waits to be taken, hyper does not notice that its client has left.
    let sent = Box::pin(within(context, source, link.send(request)));
    before(sent, gives_up(context, source)).await.unwrap_or(Err(Failure::ClientGone.into()))
}

/// Ends when the client has left, or sends nothing more of its body.
async fn gives_up(context: &AttemptContext<'_>, source: &BodySource) {
    tokio::select! {
        () = context.client_leaves() => {}
        () = body_stops(context, source) => {}
    }
}

/// Ends when no byte of an HTTP/1 body has arrived for as long as a connection may be idle. An HTTP/2 stream may pause for
/// longer, as gRPC streams do.
async fn body_stops(context: &AttemptContext<'_>, source: &BodySource) {
    let UpstreamContext { runtime, limits, .. } = &**context.upstream;
    let mut frames = None;
    while !context.record.is_http1()
        || frames.replace(source.frames()) != Some(source.frames())
        || !source.waits_for_client()
    {
        runtime.deadline(runtime.now() + limits.idle).await;
    }
}

/// Sends the request of a client that waits for a 100 before it sends its body.
async fn expecting(
    context: &AttemptContext<'_>,
    source: &Rc<BodySource>,
    link: &mut PooledConnection,
    mut request: Request<RequestBody>,
) -> Result<Sent, Unanswered> {
    let gate = Gate::before(source, &mut request);
    let patience = async {
        let runtime = &context.upstream.runtime;
        runtime.deadline(runtime.now() + EXPECT_TIMEOUT).await;
        gate.open();
        std::future::pending().await
    };
    let sent = within(context, source, link.send(request));
    tokio::select! {
        biased;
        sent = sent => sent,
        () = gives_up(context, source) => Err(Failure::ClientGone.into()),
        never = patience => never,
    }
}

/// Waits for the head of the response until its deadline.
async fn within(
    context: &AttemptContext<'_>,
    source: &BodySource,
    sending: impl Future<Output = Sent>,
) -> Result<Sent, Unanswered> {
    let (times, UpstreamContext { runtime, limits, .. }) = (&context.deadlines, &**context.upstream);
    let limit = times.timeouts.response_header;
    let mut sending = std::pin::pin!(sending);
    let (mut moved, mut frames) = (runtime.now(), source.frames());
    let (mut looked, mut half, mut by_pod) = (moved, times.half().filter(|half| moved < *half), false);
    loop {
        let head: Option<Moment> = limit.map(|limit| looked + limit);
        let dues = head.into_iter().chain(times.end).chain(half);
        let due = dues.fold(moved + limits.stream_idle, Moment::min);
        if let Some(sent) = before(sending.as_mut(), runtime.deadline(due)).await {
            return Ok(sent);
        }
        if times.end.is_some_and(|end| end <= due) {
            return Err(Unanswered { failure: Failure::RequestTimeout, by_pod });
        }
        if half.take_if(|half| *half <= due).is_some() {
            // Not the pod's fault if the hold, or the client with its body, took most of the time.
            by_pod = source.is_done();
            continue;
        }
        looked = runtime.now();
        let still = source.frames() == std::mem::replace(&mut frames, source.frames());
        // While the client still sends, the pod need not answer. But it must read what is sent.
        if still && (source.is_done() || !source.waits_for_client()) {
            return Err(Unanswered { failure: Failure::ResponseTimeout, by_pod: true });
        }
        if !still {
            moved = runtime.now();
        } else if runtime.now() >= moved + limits.stream_idle {
            // The client sends nothing any more, and has not closed its connection.
            return Err(Failure::ClientGone.into());
        }
    }
}

/// `Expect: 100-continue`: keeps the body back until the pod sends a 100.
struct Gate(Arc<Mutex<Option<oneshot::Sender<()>>>>);

impl Gate {
    fn before(source: &BodySource, request: &mut Request<RequestBody>) -> Self {
        let (sender, gate) = oneshot::channel();
        source.keep_back(gate);
        let opener = Arc::new(Mutex::new(Some(sender)));
        let ours = Self(Arc::clone(&opener));
        on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                Gate(Arc::clone(&opener)).open();
            }
        });
        ours
    }

    fn open(&self) {
        if let Some(gate) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            gate.send(()).ok();
        }
    }
}
