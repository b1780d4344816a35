//! Slot requests polled by hand, with a waker that counts its calls.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rouse_core::hold::AcquireError;
use rouse_core::service::{Port, Retry, Slot, SlotRequest};

/// A waker that counts its calls.
#[derive(Debug, Default)]
pub struct CountingWaker(AtomicUsize);

impl CountingWaker {
    /// How often it was called.
    pub fn wake_count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A slot request without a deadline.
pub struct Request {
    /// Called when the request must be polled again.
    pub waker: Arc<CountingWaker>,
    future: Pin<Box<dyn Future<Output = Result<Slot, AcquireError>>>>,
}

impl Request {
    /// A request with these parameters.
    pub fn asking(port: &Arc<Port>, ask: SlotRequest) -> Self {
        let port = Arc::clone(port);
        Self { waker: Arc::default(), future: Box::pin(async move { port.acquire(ask, pending()).await }) }
    }

    /// A request at its first attempt.
    pub fn new(port: &Arc<Port>, seed: u64) -> Self {
        Self::asking(port, SlotRequest { seed, ..SlotRequest::default() })
    }

    /// A request at its next attempt, a retry.
    pub fn again(port: &Arc<Port>, retry: Retry) -> Self {
        Self::asking(port, SlotRequest { retry: Some(retry), ..SlotRequest::default() })
    }

    /// Polls once.
    pub fn poll(&mut self) -> Poll<Result<Slot, AcquireError>> {
        let waker = Waker::from(Arc::clone(&self.waker));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Polls once, and returns the slot; anything else is a failure.
    #[track_caller]
    pub fn served(&mut self) -> Slot {
        match self.poll() {
            Poll::Ready(Ok(slot)) => slot,
            other => unreachable!("expected a slot, got {other:?}"),
        }
    }

    /// Polls once, and returns the error; anything else is a failure.
    #[track_caller]
    pub fn turned_away(&mut self) -> AcquireError {
        match self.poll() {
            Poll::Ready(Err(error)) => error,
            other => unreachable!("expected an error, got {other:?}"),
        }
    }

    /// Polls once: the request must be pending.
    ///
    /// # Panics
    ///
    /// If it is ready.
    #[must_use]
    #[track_caller]
    pub fn waits(mut self) -> Self {
        assert!(self.poll().is_pending(), "the request must be pending");
        self
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("wake_count", &self.waker.wake_count()).finish_non_exhaustive()
    }
}

/// `count` requests, all of them pending.
pub fn line(port: &Arc<Port>, count: u64) -> Vec<Request> {
    (0..count).map(|seed| Request::new(port, seed).waits()).collect()
}

/// How often their wakers were called, in total.
pub fn wake_count(requests: &[Request]) -> usize {
    requests.iter().map(|request| request.waker.wake_count()).sum()
}
