//! Bodies on their way through: a request's, which may be sent again as long as nobody has touched it, and a
//! response's, with whom the request's slot and its place in the books live and end.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use rouse_core::slot::Slot;
use tokio::sync::oneshot;

use crate::deadline::Due;
use crate::pool::Link;
use crate::request::Exchange;

/// A request's body as it comes from the client.
#[derive(Debug)]
pub(crate) struct Source {
    incoming: RefCell<Incoming>,
    touched: Cell<bool>,
    done: Cell<bool>,
    failed: Cell<bool>,
    /// `Expect: 100-continue`: opened when the pod wants the body. Asking for it earlier would tell the client to
    /// send.
    gate: RefCell<Option<oneshot::Receiver<()>>>,
}

impl Source {
    pub(crate) fn new(incoming: Incoming) -> Rc<Self> {
        Rc::new(Self {
            done: Cell::new(incoming.is_end_stream()),
            incoming: RefCell::new(incoming),
            touched: Cell::new(false),
            failed: Cell::new(false),
            gate: RefCell::default(),
        })
    }

    /// The body for one attempt.
    pub(crate) fn body(self: &Rc<Self>) -> RequestBody {
        RequestBody(Rc::clone(self))
    }

    /// Keeps the body back until `gate` is opened, or dropped.
    pub(crate) fn keep_back(&self, gate: oneshot::Receiver<()>) {
        *self.gate.borrow_mut() = Some(gate);
    }

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.incoming.borrow().is_end_stream() && !self.touched.get()
    }

    /// Nothing of it has been taken: it can still be sent elsewhere.
    pub(crate) fn is_whole(&self) -> bool {
        !self.touched.get()
    }

    /// All of it has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.done.get()
    }

    /// The client broke off.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// How long it says it is.
    pub(crate) fn size(&self) -> SizeHint {
        self.incoming.borrow().size_hint()
    }
}

/// The body of one attempt.
#[derive(Debug)]
pub(crate) struct RequestBody(Rc<Source>);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let source = &self.0;
        if let Some(gate) = source.gate.borrow_mut().as_mut()
            && pin!(gate).poll(context).is_pending()
        {
            return Poll::Pending;
        }
        *source.gate.borrow_mut() = None;
        source.touched.set(true);
        let mut incoming = source.incoming.borrow_mut();
        let frame = Pin::new(&mut *incoming).poll_frame(context);
        match &frame {
            Poll::Ready(None) => source.done.set(true),
            Poll::Ready(Some(Ok(_))) => source.done.set(incoming.is_end_stream()),
            Poll::Ready(Some(Err(_))) => source.failed.set(true),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.incoming.borrow().is_end_stream()
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
    Pod(Box<PodBody>),
}

/// A pod's response on its way to the client.
#[derive(Debug)]
pub(crate) struct PodBody {
    pub(crate) incoming: Incoming,
    /// The connection it comes from; `None` once it was given back.
    pub(crate) link: Option<Link>,
    /// Whether the connection may be used again after this.
    pub(crate) reusable: bool,
    /// Gives the slot back when the response has ended.
    pub(crate) slot: Option<Slot>,
    pub(crate) exchange: Exchange,
    /// When the whole request must be over.
    pub(crate) due: Option<Due>,
    /// It came to its end, or will not.
    pub(crate) over: bool,
}

/// The response cannot be completed: the client must not take it for whole.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the request took longer than it may")]
struct TooLong;

impl PodBody {
    fn end(&mut self) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.exchange.completed();
        if let Some(link) = self.link.take().filter(|_| self.reusable) {
            link.finished(self.exchange.worker());
        }
        self.slot = None;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(context);
        match frame {
            Poll::Ready(Some(Ok(frame))) => {
                if self.incoming.is_end_stream() {
                    self.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                self.over = true;
                self.exchange.broken_by_pod();
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => {
                if self.due.as_mut().is_some_and(|due| pin!(due).poll(context).is_ready()) {
                    self.over = true;
                    self.exchange.took_too_long();
                    return Poll::Ready(Some(Err(TooLong.into())));
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for PodBody {
    fn drop(&mut self) {
        // Without a body, nobody asks for its end.
        if self.incoming.is_end_stream() {
            self.end();
        }
    }
}

pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            AnswerBody::Ours(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            AnswerBody::Pod(body) => body.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Ours(text) => text.is_none(),
            AnswerBody::Pod(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Ours(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            AnswerBody::Pod(body) => body.incoming.size_hint(),
        }
    }
}
