//! Bodies on their way through: a request's, which may be sent again as long as nobody has touched it, and a
//! response's, with whom the request's slot and its place in the books live and end.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use rouse_core::slot::Slot;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use tokio::sync::oneshot;

use crate::buffers::{BodyAccount, Buffers, Charged, Reserved};
use crate::connection::Client;
use crate::crowd::Member;
use crate::deadline::{Due, Watched};
use crate::headers;
use crate::pool::Link;
use crate::request::Exchange;
use crate::worker::Worker;

/// As much of a body is kept for another attempt.
const KEPT: usize = 64 * 1024;

/// A request's body as it comes from the client.
#[derive(Debug)]
pub(crate) struct Source {
    incoming: RefCell<Incoming>,
    /// The connection that it comes on.
    member: Rc<Member>,
    clock: TokioClock,
    buffers: Rc<Buffers>,
    /// Counts what hyper has not written yet; `None` before the body is asked for.
    account: RefCell<Option<BodyAccount>>,
    /// How many frames have come.
    frames: Cell<u64>,
    /// Whoever asked last waits for the client.
    waits_for_client: Cell<bool>,
    /// The pod has answered: whoever listens need not speak.
    answered: Cell<bool>,
    done: Cell<bool>,
    failed: Cell<bool>,
    /// What has come so far, while it may still be wanted again.
    kept: RefCell<Kept>,
    /// `Expect: 100-continue`: opened when the pod wants the body. Asking for it earlier would tell the client to
    /// send.
    gate: RefCell<Option<oneshot::Receiver<()>>>,
}

/// The frames of a body that was sent in vain.
#[derive(Debug, Default)]
struct Kept {
    on: bool,
    frames: Vec<Piece>,
    bytes: usize,
    /// Counts them; `None` before the first.
    reserved: Option<Reserved>,
    /// How many of them this attempt has had.
    replayed: usize,
}

#[derive(Debug, Clone)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Piece {
    fn of(frame: &Frame<Bytes>) -> Option<Self> {
        let data = frame.data_ref().map(|data| Self::Data(data.clone()));
        data.or_else(|| frame.trailers_ref().map(|trailers| Self::Trailers(trailers.clone())))
    }

    fn frame(&self) -> Frame<Bytes> {
        match self {
            Piece::Data(data) => Frame::data(data.clone()),
            Piece::Trailers(trailers) => Frame::trailers(trailers.clone()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Piece::Data(data) => data.len(),
            Piece::Trailers(_) => 0,
        }
    }
}

impl Kept {
    fn add(&mut self, frame: &Frame<Bytes>, buffers: &Rc<Buffers>) {
        if let (true, Some(piece)) = (self.on, Piece::of(frame)) {
            // With its place in the list: a body in tiny frames would take a hundred times its length.
            let bytes = piece.len() + size_of::<Piece>();
            self.bytes += bytes;
            self.frames.push(piece);
            self.replayed = self.frames.len();
            // While memory is short, a body is sent once only.
            let has_room = match &mut self.reserved {
                Some(reserved) => reserved.grow(bytes),
                none => {
                    *none = buffers.reserve(bytes);
                    none.is_some()
                }
            };
            if self.bytes > KEPT || !has_room {
                *self = Self::default();
            }
        }
    }

    /// What this attempt has not had yet.
    fn rest(&self) -> &[Piece] {
        self.frames.get(self.replayed..).unwrap_or_default()
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        let frame = self.rest().first().map(Piece::frame)?;
        self.replayed += 1;
        Some(frame)
    }
}

impl Source {
    pub(crate) fn new(incoming: Incoming, client: &Client, worker: &Worker) -> Rc<Self> {
        Rc::new(Self {
            member: Rc::clone(&client.member),
            clock: worker.gateway.settings.clock,
            buffers: Rc::clone(&worker.buffers),
            account: RefCell::default(),
            done: Cell::new(incoming.is_end_stream()),
            incoming: RefCell::new(incoming),
            frames: Cell::new(0),
            waits_for_client: Cell::new(false),
            answered: Cell::new(false),
            failed: Cell::new(false),
            kept: RefCell::default(),
            gate: RefCell::default(),
        })
    }

    /// The body for one attempt, from its beginning. `keep`: the pod may say that it has not looked at it.
    pub(crate) fn body(self: &Rc<Self>, keep: bool) -> RequestBody {
        let mut kept = self.kept.borrow_mut();
        kept.replayed = 0;
        kept.on |= keep && self.frames.get() == 0;
        RequestBody(Rc::clone(self))
    }

    /// The pod has looked at it: nothing need be kept any more.
    pub(crate) fn settle(&self) {
        *self.kept.borrow_mut() = Kept::default();
        self.answered.set(true);
        self.wait_for_client(false);
    }

    /// Keeps the body back until `gate` is opened, or dropped.
    pub(crate) fn keep_back(&self, gate: oneshot::Receiver<()>) {
        *self.gate.borrow_mut() = Some(gate);
    }

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.get() == 0 && self.incoming.borrow().is_end_stream()
    }

    /// It can still be sent elsewhere: nothing of it has been taken, or all that has is kept.
    pub(crate) fn is_whole(&self) -> bool {
        self.frames.get() == 0 || self.kept.borrow().on
    }

    /// All of it has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.done.get()
    }

    /// How many frames have been taken.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.get()
    }

    /// Whoever sends it on has asked for more than has come.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.waits_for_client.get()
    }

    /// The client broke off.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// How long the rest says it is.
    pub(crate) fn size(&self) -> SizeHint {
        let again: u64 = self.kept.borrow().rest().iter().map(|piece| piece.len() as u64).sum();
        longer(self.incoming.borrow().size_hint(), again)
    }

    fn wait_for_client(&self, waits: bool) {
        match (self.waits_for_client.replace(waits), waits) {
            (false, true) => self.member.stalls(self.clock.now()),
            (true, false) => self.member.goes_on(),
            _ => {}
        }
    }

    /// The next frame, as hyper gets it.
    fn poll_charged(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Charged>, hyper::Error>>> {
        let mut account = self.account.borrow_mut();
        // Before the first frame: the first frames of many streams are many bytes, too.
        let account = account.get_or_insert_with(|| self.buffers.open(&self.member));
        if !account.may_pull(context) {
            return Poll::Pending;
        }
        self.poll(context).map_ok(|frame| frame.map_data(|data| account.charge(data)))
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut gate = self.gate.borrow_mut();
        if gate.as_mut().is_some_and(|gate| pin!(gate).poll(context).is_pending()) {
            return Poll::Pending;
        }
        *gate = None;
        drop(gate);
        if let Some(frame) = self.kept.borrow_mut().next() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let mut incoming = self.incoming.borrow_mut();
        let mut frame = Pin::new(&mut *incoming).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::clean_request_trailers(trailers);
        }
        self.wait_for_client(frame.is_pending() && !self.answered.get());
        match &frame {
            Poll::Ready(None) => self.done.set(true),
            Poll::Ready(Some(Ok(frame))) => {
                self.frames.set(self.frames.get() + 1);
                self.done.set(incoming.is_end_stream());
                self.kept.borrow_mut().add(frame, &self.buffers);
            }
            Poll::Ready(Some(Err(_))) => self.failed.set(true),
            Poll::Pending => {}
        }
        frame
    }
}

fn longer(mut size: SizeHint, by: u64) -> SizeHint {
    // The upper bound first: the lower may not be above it.
    if let Some(upper) = size.upper() {
        size.set_upper(upper.saturating_add(by));
    }
    size.set_lower(size.lower().saturating_add(by));
    size
}

impl Drop for Source {
    fn drop(&mut self) {
        self.wait_for_client(false);
    }
}

/// The body of one attempt.
#[derive(Debug)]
pub(crate) struct RequestBody(Rc<Source>);

impl Body for RequestBody {
    type Data = Charged;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Charged>, hyper::Error>>> {
        self.0.poll_charged(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.incoming.borrow().is_end_stream() && self.0.kept.borrow().rest().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size()
    }
}

/// What a client gets.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// Our own words.
    Ours(Option<Bytes>),
    /// A pod's.
    Pod(Response),
}

/// A pod's response on its way to the client. Shared with its deadline: hyper does not ask for more
/// while a client does not read, and the deadline must be kept all the same.
pub(crate) type Response = Rc<RefCell<PodBody>>;

/// A pod's response: what came with its head, and the rest.
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

/// What a response under way holds on to.
#[derive(Debug)]
pub(crate) struct PodBody {
    /// Where it comes from; `None` when it was cut.
    incoming: Option<PodIncoming>,
    /// The connection it comes from, and whether that may be used again; `None` once it was given back.
    link: Option<Link>,
    reusable: bool,
    /// Gives the slot back when the response has ended.
    slot: Option<Slot>,
    /// Its line in the books; `None` once it was written.
    exchange: Option<Exchange>,
    /// Counts what hyper has not written yet.
    account: BodyAccount,
    watch: Watch,
    /// Keeps [`Watch`] going.
    _due: Due,
    /// Whoever waits for the next frame.
    waker: Option<Waker>,
}

/// How long a response may take, and how long in silence.
#[derive(Debug)]
struct Watch {
    /// When the whole request must be over.
    end: Option<Moment>,
    /// How often to look whether anything moves.
    pause: Duration,
    /// How many frames have come so far.
    frames: u64,
    /// The request, which may still be sent.
    source: Rc<Source>,
    /// How many frames there were in all when somebody last looked.
    seen: u64,
    /// How many looks in a row have found nothing new.
    quiet: u32,
}

/// So many looks that find nothing new end a response.
const LOOKS: u32 = 4;

impl Watch {
    /// When to look again; `None`: its time is up.
    fn look(&mut self, now: Moment) -> Option<Moment> {
        let frames = self.frames + self.source.frames();
        self.quiet = if std::mem::replace(&mut self.seen, frames) == frames { self.quiet + 1 } else { 0 };
        if self.quiet >= LOOKS || self.end.is_some_and(|end| end <= now) {
            return None;
        }
        Some(self.next(now))
    }

    fn next(&self, now: Moment) -> Moment {
        self.end.into_iter().fold(now + self.pause, Moment::min)
    }
}

/// The response cannot be completed: the client must not take it for whole.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the request took longer than it may")]
struct TooLong;

impl PodBody {
    /// The response to the request of `source` begins. It must be over by `end`, and may not be silent for too long.
    pub(crate) fn begin(
        incoming: PodIncoming,
        source: Rc<Source>,
        link: Link,
        slot: Option<Slot>,
        exchange: Exchange,
        end: Option<Moment>,
    ) -> Response {
        let worker = exchange.worker();
        let settings = &worker.gateway.settings;
        let pause = settings.limits.stream_idle / LOOKS;
        let seen = source.frames();
        // A response that came before the whole request was sent leaves the connection in doubt.
        let reusable = source.is_done();
        let account = source.buffers.open(&source.member);
        let watch = Watch { end, pause, frames: 0, source, seen, quiet: 0 };
        let due = worker.deadlines.at(watch.next(settings.clock.now()));
        Rc::new_cyclic(|body: &Weak<RefCell<Self>>| {
            // Weakly: it must end when nobody wants it any more.
            due.watch(Weak::clone(body) as _);
            RefCell::new(Self {
                incoming: Some(incoming),
                link: Some(link),
                reusable,
                slot,
                exchange: Some(exchange),
                account,
                watch,
                _due: due,
                waker: None,
            })
        })
    }

    /// Its time is up. Answers whom to wake.
    fn cut(&mut self) -> Option<Waker> {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.took_too_long();
        }
        (self.incoming, self.link, self.slot) = (None, None, None);
        self.waker.take()
    }

    /// It came to its end.
    fn end(&mut self) {
        let Some(mut exchange) = self.exchange.take() else { return };
        exchange.completed();
        if let Some(link) = self.link.take().filter(|_| self.reusable) {
            link.finished(exchange.worker());
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
                if let (Some(exchange), Some(data)) = (&self.exchange, frame.data_ref()) {
                    exchange.sent(data.len() as u64);
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
                if let Some(exchange) = &mut self.exchange {
                    exchange.broken_by_pod();
                }
                self.exchange = None;
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
    fn time_is_up(&self, now: Moment) -> Option<Moment> {
        let mut body = self.borrow_mut();
        let next = body.watch.look(now);
        let waker = if next.is_none() { body.cut() } else { None };
        drop(body);
        // With nothing borrowed any more: whoever wakes looks into it.
        if let Some(waker) = waker {
            waker.wake();
        }
        next
    }
}

impl Drop for PodBody {
    fn drop(&mut self) {
        // Without a body, nobody asks for its end.
        if self.is_end_stream() {
            self.end();
        }
    }
}

pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

impl Body for AnswerBody {
    type Data = Charged;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Charged>, BodyError>>> {
        match self.get_mut() {
            AnswerBody::Ours(text) => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(Charged::free(text)))))
            }
            AnswerBody::Pod(body) => body.borrow_mut().poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Ours(text) => text.is_none(),
            AnswerBody::Pod(body) => body.borrow().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Ours(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            AnswerBody::Pod(body) => {
                body.borrow().incoming.as_ref().map(PodIncoming::size_hint).unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::buffers::Budget;

    #[test]
    fn a_body_in_tiny_frames_is_kept_no_longer_than_its_room_allows() {
        let buffers = Buffers::new(&Arc::new(Budget::new(1 << 20)), 1 << 20);
        let mut kept = Kept { on: true, ..Kept::default() };
        let mut most = 0;
        while kept.on {
            kept.add(&Frame::data(Bytes::from_static(b"x")), &buffers);
            most = most.max(kept.frames.len());
        }
        assert!(kept.frames.is_empty());
        assert!(most > 100 && most * size_of::<Piece>() <= KEPT, "{most} frames");
        let all = buffers.reserve((1 << 20) + 1);
        assert!(all.is_some(), "what is not kept any more does not count");
    }

    #[test]
    fn a_body_counts_while_it_is_kept_and_is_not_kept_while_memory_is_short() {
        let buffers = Buffers::new(&Arc::new(Budget::new(1 << 20)), 1 << 20);
        let frame = Frame::data(Bytes::from_static(&[0; 1024]));
        let mut kept = Kept { on: true, ..Kept::default() };
        kept.add(&frame, &buffers);
        assert!(kept.on && kept.reserved.is_some());
        let flood = buffers.reserve(2 << 20);
        kept.add(&frame, &buffers);
        assert!(!kept.on && kept.frames.is_empty() && kept.reserved.is_none());
        drop(flood);
        assert!(buffers.reserve(1).is_some());
    }
}
