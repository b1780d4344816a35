//! The queue of services that wait to be woken.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rouse_core::endpoint::ServiceId;
use tokio::sync::Notify;

/// The most services that wait to be woken. The core repeats a wake that does not fit.
const CAPACITY: usize = 10_000;

/// Services that wait to be woken, each once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    order: VecDeque<ServiceId>,
    /// Services in `order`, and services that are being woken.
    known: HashSet<ServiceId>,
}

impl Queue {
    /// Requests call this: it never waits.
    pub(super) fn push(&self, service: &ServiceId) {
        let mut waiting = self.lock();
        if waiting.order.len() >= CAPACITY || !waiting.known.insert(service.clone()) {
            return;
        }
        waiting.order.push_back(service.clone());
        drop(waiting);
        self.added.notify_one();
    }

    pub(super) fn pop(&self) -> Option<ServiceId> {
        self.lock().order.pop_front()
    }

    /// Waits for the next push.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// The wake of `service` is over: it may be pushed again.
    pub(super) fn done(&self, service: &ServiceId) {
        self.lock().known.remove(service);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_waits_once_however_often_it_is_asked_for() {
        let queue = Queue::default();
        let cart = ServiceId::new("shop", "cart").unwrap();
        (0..100).for_each(|_| queue.push(&cart));
        assert_eq!((queue.pop(), queue.pop()), (Some(cart.clone()), None));
        queue.push(&cart);
        assert_eq!(queue.pop(), None, "it is under way");
        queue.done(&cart);
        queue.push(&cart);
        assert_eq!(queue.pop(), Some(cart));
    }

    #[test]
    fn no_more_wait_than_may() {
        let queue = Queue::default();
        for n in 0..=CAPACITY {
            queue.push(&ServiceId::new("shop", &format!("s{n}")).unwrap());
        }
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), CAPACITY);
    }
}
