//! Requests that wait for a slot, polled by hand, each with a bell that counts how often it was called.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rouse_core::hold::AcquireError;
use rouse_core::service::{Port, Retry, Slot, SlotRequest};

/// Counts how often it was rung.
#[derive(Debug, Default)]
pub struct Bell(AtomicUsize);

impl Bell {
    /// How often.
    pub fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A request that wants a slot, without a deadline.
pub struct Request {
    /// Rung when there is something for it.
    pub bell: Arc<Bell>,
    future: Pin<Box<dyn Future<Output = Result<Slot, AcquireError>>>>,
}

impl Request {
    /// A request that asks so.
    pub fn asking(port: &Arc<Port>, ask: SlotRequest) -> Self {
        let port = Arc::clone(port);
        Self { bell: Arc::default(), future: Box::pin(async move { port.acquire(ask, pending()).await }) }
    }

    /// A request at its first try.
    pub fn new(port: &Arc<Port>, seed: u64) -> Self {
        Self::asking(port, SlotRequest { seed, ..SlotRequest::default() })
    }

    /// A request at its next try.
    pub fn again(port: &Arc<Port>, retry: Retry) -> Self {
        Self::asking(port, SlotRequest { retry: Some(retry), ..SlotRequest::default() })
    }

    /// Looks once.
    pub fn poll(&mut self) -> Poll<Result<Slot, AcquireError>> {
        let waker = Waker::from(Arc::clone(&self.bell));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// The slot that it must have got.
    #[track_caller]
    pub fn served(&mut self) -> Slot {
        match self.poll() {
            Poll::Ready(Ok(slot)) => slot,
            other => unreachable!("it must be served: {other:?}"),
        }
    }

    /// The error that it must have got.
    #[track_caller]
    pub fn turned_away(&mut self) -> AcquireError {
        match self.poll() {
            Poll::Ready(Err(error)) => error,
            other => unreachable!("it must be turned away: {other:?}"),
        }
    }

    /// The same request, which must have to wait.
    ///
    /// # Panics
    ///
    /// If it does not.
    #[must_use]
    #[track_caller]
    pub fn waits(mut self) -> Self {
        assert!(self.poll().is_pending(), "it must wait");
        self
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("rung", &self.bell.rung()).finish_non_exhaustive()
    }
}

/// `count` requests in line.
pub fn line(port: &Arc<Port>, count: u64) -> Vec<Request> {
    (0..count).map(|seed| Request::new(port, seed).waits()).collect()
}

/// How often they were called in all.
pub fn rung(requests: &[Request]) -> usize {
    requests.iter().map(|request| request.bell.rung()).sum()
}
