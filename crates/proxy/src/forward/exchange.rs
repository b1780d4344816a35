//! One request on one connection: sending it, and waiting for the response's head as long as it may take.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::ext::on_informational;
use rouse_core::time::{Clock as _, Moment};
use tokio::sync::oneshot;

use crate::body::{RequestBody, Source};
use crate::error::Failure;
use crate::pool::Link;
use crate::request::{Journey, before};

/// A pod that does not know `Expect` never says 100. After so long the client is told to send all the same.
const EXPECT_PATIENCE: Duration = Duration::from_secs(1);

/// No response came.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) failure: Failure,
    /// The pod had all of the request, and time to answer it.
    pub(super) by_pod: bool,
}

impl From<Failure> for Unanswered {
    /// Nothing against the pod.
    fn from(failure: Failure) -> Self {
        Self { failure, by_pod: false }
    }
}

pub(super) type Sent = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

/// Sends the request and waits for the response's head, as long as it may take.
pub(super) async fn exchange(
    journey: &Journey<'_>,
    source: &Rc<Source>,
    link: &mut Link,
    request: Request<RequestBody>,
) -> Result<Sent, Unanswered> {
    let expects = request.headers().get(header::EXPECT);
    if expects.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Box::pin(expecting(journey, source, link, request)).await;
    }
    if source.is_done() {
        return within(journey, source, link.send(request)).await;
    }
    // While a body waits to be taken, hyper does not see that its client has left.
    let sent = Box::pin(within(journey, source, link.send(request)));
    before(sent, gives_up(journey, source)).await.unwrap_or(Err(Failure::ClientGone.into()))
}

/// Ends when the client has left, or sends nothing more of its body.
async fn gives_up(journey: &Journey<'_>, source: &Source) {
    tokio::select! {
        () = journey.client_leaves() => {}
        () = body_stops(journey, source) => {}
    }
}

/// Ends when nothing of an HTTP/1 body has come for as long as a connection may be idle. A stream of HTTP/2 may pause for
/// longer: so does gRPC.
async fn body_stops(journey: &Journey<'_>, source: &Source) {
    let settings = &journey.worker.gateway.settings;
    let mut frames = None;
    while !journey.exchange.is_http1()
        || frames.replace(source.frames()) != Some(source.frames())
        || !source.waits_for_client()
    {
        journey.worker.deadlines.at(settings.clock.now() + settings.limits.idle).await;
    }
}

/// The same for a client that waits to be asked for its body.
async fn expecting(
    journey: &Journey<'_>,
    source: &Rc<Source>,
    link: &mut Link,
    mut request: Request<RequestBody>,
) -> Result<Sent, Unanswered> {
    let gate = Gate::before(source, &mut request);
    let patience = async {
        let due = journey.worker.gateway.settings.clock.now() + EXPECT_PATIENCE;
        journey.worker.deadlines.at(due).await;
        gate.open();
        std::future::pending().await
    };
    let sent = within(journey, source, link.send(request));
    tokio::select! {
        biased;
        sent = sent => sent,
        () = gives_up(journey, source) => Err(Failure::ClientGone.into()),
        never = patience => never,
    }
}

/// Waits for the response's head until its time is up.
async fn within(
    journey: &Journey<'_>,
    source: &Source,
    sending: impl Future<Output = Sent>,
) -> Result<Sent, Unanswered> {
    let (times, worker) = (&journey.times, journey.worker);
    let (clock, deadlines, limits) =
        (worker.gateway.settings.clock, &worker.deadlines, &worker.gateway.settings.limits);
    let limit = times.timeouts.response_header;
    let mut sending = std::pin::pin!(sending);
    let (mut moved, mut frames) = (clock.now(), source.frames());
    let (mut looked, mut half, mut by_pod) = (moved, times.half().filter(|half| moved < *half), false);
    loop {
        let head: Option<Moment> = limit.map(|limit| looked + limit);
        let dues = head.into_iter().chain(times.end).chain(half);
        let due = dues.fold(moved + limits.stream_idle, Moment::min);
        if let Some(sent) = before(sending.as_mut(), deadlines.at(due)).await {
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
        looked = clock.now();
        let still = source.frames() == std::mem::replace(&mut frames, source.frames());
        // While the client still sends, the pod need not answer. But it must take what is sent.
        if still && (source.is_done() || !source.waits_for_client()) {
            return Err(Unanswered { failure: Failure::ResponseTimeout, by_pod: true });
        }
        if !still {
            moved = clock.now();
        } else if clock.now() >= moved + limits.stream_idle {
            // It sends nothing any more, and does not say that it has left.
            return Err(Failure::ClientGone.into());
        }
    }
}

/// `Expect: 100-continue`: keeps the body back until the pod asks for it.
struct Gate(Arc<Mutex<Option<oneshot::Sender<()>>>>);

impl Gate {
    fn before(source: &Source, request: &mut Request<RequestBody>) -> Self {
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
