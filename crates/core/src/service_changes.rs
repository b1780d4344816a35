//! Which services have a new snapshot: one subscription for all services, for readers that publish them elsewhere.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::endpoint::ServiceId;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, fence, lock};

/// The subscribers to changes of all services.
#[derive(Debug, Default)]
pub(crate) struct ServiceChanges {
    subscribers: Mutex<Slab<Subscriber>>,
    /// How many there are, so that a change without subscribers takes no lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Subscriber {
    /// Has each service once: bounded by the number of services.
    changed: BTreeSet<ServiceId>,
    waker: Option<Waker>,
}

impl ServiceChanges {
    /// Tells the subscribers that a service has a new snapshot. Called after it was published: a subscriber that is told earlier would
    /// read the old one.
    pub(crate) fn mark(&self, id: &ServiceId) {
        // Pairs with the fence in `subscribe`: either this thread sees the subscriber, or the subscriber reads the new snapshot.
        fence();
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut subscribers = lock(&self.subscribers);
        let mut wakers = Vec::new();
        for (_, subscriber) in subscribers.iter_mut() {
            subscriber.changed.insert(id.clone());
            wakers.extend(subscriber.waker.take());
        }
        drop(subscribers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Subscribes. `known` are the services that there are, read after the subscription.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        known: impl FnOnce() -> Vec<ServiceId>,
    ) -> ServiceChangeSubscription {
        let place = lock(&self.subscribers).insert(Subscriber::default());
        self.count.fetch_add(1, Ordering::AcqRel);
        fence();
        // Without our lock: this takes the lock of the registry.
        let known = known();
        if let Some(subscriber) = lock(&self.subscribers).get_mut(place) {
            subscriber.changed.extend(known);
        }
        ServiceChangeSubscription { changes: Arc::clone(self), place }
    }
}

/// One reader of all services.
#[derive(Debug)]
pub struct ServiceChangeSubscription {
    changes: Arc<ServiceChanges>,
    place: usize,
}

impl ServiceChangeSubscription {
    /// Waits until services have changed or were removed, and returns each once. The first call returns all services. A service that
    /// changes again while the caller reads it is returned again.
    pub async fn changed(&mut self) -> BTreeSet<ServiceId> {
        poll_fn(|context| self.poll_changed(context)).await
    }

    /// The services that have changed and were not returned yet. Does not wait.
    pub fn take(&mut self) -> BTreeSet<ServiceId> {
        let mut subscribers = lock(&self.changes.subscribers);
        subscribers.get_mut(self.place).map(|it| std::mem::take(&mut it.changed)).unwrap_or_default()
    }

    fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<BTreeSet<ServiceId>> {
        let mut subscribers = lock(&self.changes.subscribers);
        let Some(subscriber) = subscribers.get_mut(self.place) else { return Poll::Pending };
        if subscriber.changed.is_empty() {
            subscriber.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut subscriber.changed))
    }
}

impl Drop for ServiceChangeSubscription {
    fn drop(&mut self) {
        lock(&self.changes.subscribers).try_remove(self.place);
        self.changes.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Loom models (`make loom`).
#[cfg(all(test, loom))]
mod models {
    use loom::future::block_on;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    #[test]
    fn a_subscriber_reads_the_last_value_of_a_service_that_changes_while_it_subscribes() {
        loom::model(|| {
            let (changes, value) = (Arc::new(ServiceChanges::default()), Arc::new(AtomicU64::new(0)));
            let id: ServiceId = "shop/cart".parse().unwrap();
            let writer = thread::spawn({
                let (changes, value, id) = (Arc::clone(&changes), Arc::clone(&value), id.clone());
                move || {
                    value.store(1, Ordering::Release);
                    changes.mark(&id);
                }
            });
            let mut subscription = changes.subscribe(|| vec![id]);
            block_on(async {
                subscription.changed().await;
                while value.load(Ordering::Acquire) == 0 {
                    subscription.changed().await;
                }
            });
            writer.join().unwrap();
        });
    }
}
