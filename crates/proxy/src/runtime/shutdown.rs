//! A worker thread's own copy of a shutdown signal, checked without a lock.
//!
//! Every connection waits for the end of the gateway beside everything else, and checks for it whenever it is polled. A
//! [`CancellationToken`] takes two locks for each of these checks, and all threads share them.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;
use tokio_util::sync::CancellationToken;

/// A cancellation token that is checked without a lock. Clones are the same signal.
#[derive(Debug, Clone)]
pub(crate) struct ShutdownSignal(Rc<State>);

#[derive(Debug)]
struct State {
    token: CancellationToken,
    cancelled: Cell<bool>,
    waiting: RefCell<Slab<Waker>>,
}

impl ShutdownSignal {
    /// Does not change before [`follow`](Self::follow) runs.
    pub(crate) fn of(token: CancellationToken) -> Self {
        Self(Rc::new(State { token, cancelled: Cell::new(false), waiting: RefCell::default() }))
    }

    /// Waits for the token, and passes it on.
    pub(crate) async fn follow(&self) {
        self.0.token.cancelled().await;
        self.0.cancelled.set(true);
        // Taken out first: a task that is woken may wait again at once.
        let waiting = self.0.waiting.take();
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.cancelled.get()
    }

    /// Ends when the token is cancelled.
    pub(crate) fn cancelled(&self) -> Cancelled<'_> {
        Cancelled { signal: &self.0, place: None }
    }
}

/// Ends when the token of its signal is cancelled.
#[derive(Debug)]
pub(crate) struct Cancelled<'a> {
    signal: &'a State,
    /// Where its waker is kept.
    place: Option<usize>,
}

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.signal.cancelled.get() {
            return Poll::Ready(());
        }
        let mut waiting = self.signal.waiting.borrow_mut();
        match self.place.and_then(|place| waiting.get_mut(place)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => self.place = Some(waiting.insert(context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        // Once the token is cancelled, the list is empty, or has only entries of later waiters.
        if let Some(place) = self.place.filter(|_| !self.signal.cancelled.get()) {
            self.signal.waiting.borrow_mut().try_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_signal_wakes_present_waiters_and_is_seen_by_later_ones() {
        let token = CancellationToken::new();
        let signal = ShutdownSignal::of(token.clone());
        let cancel = async {
            tokio::task::yield_now().await;
            assert!(!signal.is_cancelled());
            token.cancel();
        };
        let all = async { tokio::join!(signal.cancelled(), signal.cancelled(), signal.follow(), cancel) };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("all waiters are woken");
        assert!(signal.is_cancelled());
        signal.cancelled().await;
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_no_entry() {
        let signal = ShutdownSignal::of(CancellationToken::new());
        tokio::select! {
            biased;
            () = signal.cancelled() => {}
            () = tokio::task::yield_now() => {}
        }
        assert!(signal.0.waiting.borrow().is_empty());
    }
}
