//! A request's body on its way to a pod. It can be sent again as long as nothing of it has been taken, or all that was taken
//! is kept.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use super::longer;
use super::replay::{Piece, ReplayBuffer};
use crate::budget::{BodyAccount, BodyBuffers, Charged};
use crate::client::ClientState;
use crate::runtime::Runtime;
use crate::upstream::context::UpstreamContext;
use crate::upstream::headers;

/// A request's body as it comes from the client.
#[derive(Debug)]
pub(crate) struct BodySource {
    incoming: RefCell<Incoming>,
    /// The connection that it comes on.
    pub(super) client: Rc<ClientState>,
    runtime: Rc<Runtime>,
    pub(super) buffers: Rc<BodyBuffers>,
    /// Counts what hyper has not written yet; `None` before the body is read.
    account: RefCell<Option<BodyAccount>>,
    /// How many frames have arrived.
    frames: Cell<u64>,
    /// hyper waits for the next frame from the client.
    waits_for_client: Cell<bool>,
    /// The pod has answered: a client that reads a response need not send.
    answered: Cell<bool>,
    done: Cell<bool>,
    failed: Cell<bool>,
    /// The frames that have arrived, while another attempt may need them.
    kept: RefCell<ReplayBuffer>,
    /// `Expect: 100-continue`: opened when the pod wants the body. Reading it earlier would make hyper send a 100 to the client.
    gate: RefCell<Option<oneshot::Receiver<()>>>,
}

impl BodySource {
    pub(crate) fn new(incoming: Incoming, client: &Rc<ClientState>, upstream: &UpstreamContext) -> Rc<Self> {
        Rc::new(Self {
            client: Rc::clone(client),
            runtime: Rc::clone(&upstream.runtime),
            buffers: Rc::clone(&upstream.buffers),
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

    /// The body for one attempt, from its beginning. `keep`: the pod may report that it has not processed the request.
    pub(crate) fn body(self: &Rc<Self>, keep: bool) -> RequestBody {
        let mut kept = self.kept.borrow_mut();
        kept.replayed = 0;
        kept.on |= keep && self.frames.get() == 0;
        RequestBody(Rc::clone(self))
    }

    /// The pod has answered: no frames need be kept any more.
    pub(crate) fn settle(&self) {
        *self.kept.borrow_mut() = ReplayBuffer::default();
        self.answered.set(true);
        self.wait_for_client(false);
    }

    /// Keeps the body back until `gate` is opened, or dropped.
    pub(crate) fn keep_back(&self, gate: oneshot::Receiver<()>) {
        *self.gate.borrow_mut() = Some(gate);
    }

    /// Whether there is no body.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.get() == 0 && self.incoming.borrow().is_end_stream()
    }

    /// Whether it can be sent again: nothing of it has been taken, or all taken frames are kept.
    pub(crate) fn is_whole(&self) -> bool {
        self.frames.get() == 0 || self.kept.borrow().on
    }

    /// Whether all of it has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.done.get()
    }

    /// How many frames have been taken.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.get()
    }

    /// Whether hyper waits for the next frame from the client.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.waits_for_client.get()
    }

    /// Whether the client broke off.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// The size of the part that has not been taken in this attempt.
    pub(crate) fn size(&self) -> SizeHint {
        let again: u64 = self.kept.borrow().rest().iter().map(|piece: &Piece| piece.len() as u64).sum();
        longer(self.incoming.borrow().size_hint(), again)
    }

    fn wait_for_client(&self, waits: bool) {
        match (self.waits_for_client.replace(waits), waits) {
            (false, true) => self.client.body_stalls(self.runtime.now()),
            (true, false) => self.client.body_resumes(),
            _ => {}
        }
    }

    /// The next frame, as hyper gets it.
    fn poll_charged(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Charged>, hyper::Error>>> {
        let mut account = self.account.borrow_mut();
        // Also before the first frame: the first frames of many streams are many bytes together.
        let account = account.get_or_insert_with(|| self.buffers.open(&self.client));
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

impl Drop for BodySource {
    fn drop(&mut self) {
        self.wait_for_client(false);
    }
}

/// The body of one attempt.
#[derive(Debug)]
pub(crate) struct RequestBody(Rc<BodySource>);

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
