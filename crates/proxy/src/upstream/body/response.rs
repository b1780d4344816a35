//! A pod's response body on its way to the client. It holds the request's slot, its connection and its record, and gives
//! each back when the response ends.

use std::cell::RefCell;
use std::error::Error;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use rouse_core::service::Slot;
use rouse_core::time::Moment;

use super::longer;
use super::request::BodySource;
use crate::budget::{BodyAccount, Charged};
use crate::error::Failure;
use crate::runtime::{DeadlineFuture, Watched};
use crate::telemetry::ResponseRecord;
use crate::upstream::context::UpstreamContext;
use crate::upstream::headers;
use crate::upstream::pool::PooledConnection;

/// The body of a pod's response. Its deadline shares it: hyper does not poll while a client does not read, and the deadline
/// must be kept all the same.
#[derive(Debug)]
pub(crate) struct ResponseBody(Rc<RefCell<PodBody>>);

pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

impl Body for ResponseBody {
    type Data = Charged;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Charged>, BodyError>>> {
        self.0.borrow_mut().poll(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.borrow().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.borrow().incoming.as_ref().map(PodIncoming::size_hint).unwrap_or_default()
    }
}

/// What a pod sends: the frame that came with the head, and the rest.
#[derive(Debug)]
pub(crate) struct PodIncoming {
    first: Option<Frame<Bytes>>,
    rest: Incoming,
}

impl PodIncoming {
    pub(crate) fn new(first: Option<Frame<Bytes>>, rest: Incoming) -> Self {
        Self { first, rest }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let mut frame = match self.first.take() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::clean_response_trailers(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
        longer(self.rest.size_hint(), first)
    }
}

/// A response under way, and what it holds until it ends.
#[derive(Debug)]
struct PodBody {
    /// Where the frames come from; `None` when the response was cut.
    incoming: Option<PodIncoming>,
    /// The connection to the pod; `None` once it was given back.
    link: Option<PooledConnection>,
    /// Whether the connection may carry another request.
    reusable: bool,
    /// Gives the slot back when the response has ended.
    slot: Option<Slot>,
    /// The record of its request; `None` once it was written.
    record: Option<ResponseRecord>,
    /// Counts what hyper has not written yet.
    account: BodyAccount,
    watch: Watch,
    /// Calls [`Watched::on_deadline`].
    _due: DeadlineFuture,
    upstream: Rc<UpstreamContext>,
    /// The task that waits for the next frame.
    waker: Option<Waker>,
}

/// When a response is cut: at its deadline, or after too long without a frame.
#[derive(Debug)]
struct Watch {
    /// When the whole request must be over.
    end: Option<Moment>,
    /// How often to check for new frames.
    pause: Duration,
    /// How many frames have arrived.
    frames: u64,
    /// The body of the request, which may still be sent.
    source: Rc<BodySource>,
    /// How many frames there were in both directions at the last check.
    seen: u64,
    /// How many checks in a row have found no new frame.
    stalled: u32,
}

/// A response ends after this many checks in a row without a new frame.
const MAX_CHECKS: u32 = 4;

impl Watch {
    /// When to check again; `None`: the response is cut.
    fn check(&mut self, now: Moment) -> Option<Moment> {
        let frames = self.frames + self.source.frames();
        self.stalled = if std::mem::replace(&mut self.seen, frames) == frames { self.stalled + 1 } else { 0 };
        if self.stalled >= MAX_CHECKS || self.end.is_some_and(|end| end <= now) {
            return None;
        }
        Some(self.next(now))
    }

    fn next(&self, now: Moment) -> Moment {
        self.end.into_iter().fold(now + self.pause, Moment::min)
    }
}

/// The response cannot be completed: the client must not take it for a complete one.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the request exceeded its timeout")]
struct TooLong;

/// A response that begins, and what it holds until it ends.
#[derive(Debug)]
pub(crate) struct StreamedResponse {
    pub(crate) upstream: Rc<UpstreamContext>,
    pub(crate) incoming: PodIncoming,
    /// The body of its request, which may still be sent.
    pub(crate) source: Rc<BodySource>,
    pub(crate) link: PooledConnection,
    pub(crate) slot: Option<Slot>,
    /// When the response must be over.
    pub(crate) end: Option<Moment>,
}

impl StreamedResponse {
    /// The body, which takes `record` to its end.
    pub(crate) fn begin(self, record: ResponseRecord) -> ResponseBody {
        PodBody::begin(self, record)
    }
}

impl PodBody {
    fn begin(response: StreamedResponse, record: ResponseRecord) -> ResponseBody {
        let StreamedResponse { upstream, incoming, source, link, slot, end } = response;
        let pause = upstream.limits.stream_idle / MAX_CHECKS;
        let seen = source.frames();
        // After a response that came before the whole request was sent, the connection may carry no other request.
        let reusable = source.is_done();
        let account = source.buffers.open(&source.client);
        let watch = Watch { end, pause, frames: 0, source, seen, stalled: 0 };
        let due = upstream.runtime.deadline(watch.next(upstream.runtime.now()));
        ResponseBody(Rc::new_cyclic(|body: &Weak<RefCell<Self>>| {
            // Weakly: the body must end when the client's connection drops it.
            due.watch(Weak::clone(body) as _);
            RefCell::new(Self {
                incoming: Some(incoming),
                link: Some(link),
                reusable,
                slot,
                record: Some(record),
                account,
                watch,
                _due: due,
                upstream,
                waker: None,
            })
        }))
    }

    /// Cuts the response at its deadline. Returns the task to wake.
    fn cut(&mut self) -> Option<Waker> {
        if let Some(mut record) = self.record.take() {
            record.breaks_off(&Failure::RequestTimeout);
        }
        (self.incoming, self.link, self.slot) = (None, None, None);
        self.waker.take()
    }

    /// The response is complete.
    fn end(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        record.completed();
        if let Some(link) = self.link.take().filter(|_| self.reusable) {
            link.finished(&self.upstream);
        }
        self.slot = None;
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_some_and(PodIncoming::is_end_stream)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Charged>, BodyError>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(Some(Err(TooLong.into())));
        };
        if !self.account.may_pull(context) {
            self.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match incoming.poll(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.watch.frames += 1;
                let last = incoming.is_end_stream();
                if let (Some(record), Some(data)) = (&self.record, frame.data_ref()) {
                    record.sent(data.len() as u64);
                }
                let frame = frame.map_data(|data| self.account.charge(data));
                if last {
                    self.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(record) = &mut self.record {
                    record.breaks_off(&Failure::UpstreamReset);
                }
                self.record = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => {
                self.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Watched for RefCell<PodBody> {
    fn on_deadline(&self, now: Moment) -> Option<Moment> {
        let mut body = self.borrow_mut();
        let next = body.watch.check(now);
        let waker = if next.is_none() { body.cut() } else { None };
        drop(body);
        // With nothing borrowed any more: the task that wakes borrows the body.
        if let Some(waker) = waker {
            waker.wake();
        }
        next
    }
}

impl Drop for PodBody {
    fn drop(&mut self) {
        // hyper does not poll for the end of an empty body.
        if self.is_end_stream() {
            self.end();
        }
    }
}
