//! What all workers are told, as one of them hears it.
//!
//! Every connection waits for the end of the gateway beside everything else, and looks whenever it is polled. A
//! [`CancellationToken`] takes two locks for each of these looks, and all threads share them.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;
use tokio_util::sync::CancellationToken;

/// A token that is looked at without a lock. Clones are the same signal.
#[derive(Debug, Clone)]
pub(crate) struct Signal(Rc<Heard>);

#[derive(Debug)]
struct Heard {
    token: CancellationToken,
    cancelled: Cell<bool>,
    waiting: RefCell<Slab<Waker>>,
}

impl Signal {
    /// Hears nothing until somebody runs [`follow`](Self::follow).
    pub(crate) fn of(token: CancellationToken) -> Self {
        Self(Rc::new(Heard { token, cancelled: Cell::new(false), waiting: RefCell::default() }))
    }

    /// Waits for the token, and passes it on.
    pub(crate) async fn follow(&self) {
        self.0.token.cancelled().await;
        self.0.cancelled.set(true);
        // Taken out first: whoever is woken may come back at once.
        let waiting = self.0.waiting.take();
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.cancelled.get()
    }

    /// Ends when it has been heard.
    pub(crate) fn cancelled(&self) -> Cancelled<'_> {
        Cancelled { signal: &self.0, place: None }
    }
}

/// Ends when its signal has been heard.
#[derive(Debug)]
pub(crate) struct Cancelled<'a> {
    signal: &'a Heard,
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
        // Once it has been heard, the list is empty, or others' that came later.
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
    async fn a_signal_reaches_all_who_wait_and_all_who_come_later() {
        let token = CancellationToken::new();
        let signal = Signal::of(token.clone());
        let cancel = async {
            tokio::task::yield_now().await;
            assert!(!signal.is_cancelled());
            token.cancel();
        };
        let all = async { tokio::join!(signal.cancelled(), signal.cancelled(), signal.follow(), cancel) };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("everybody has heard");
        assert!(signal.is_cancelled());
        signal.cancelled().await;
    }

    #[tokio::test]
    async fn whoever_stops_waiting_leaves_nothing_behind() {
        let signal = Signal::of(CancellationToken::new());
        tokio::select! {
            biased;
            () = signal.cancelled() => {}
            () = tokio::task::yield_now() => {}
        }
        assert!(signal.0.waiting.borrow().is_empty());
    }
}
