//! The timer queue of the registry: at most one deadline per service.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use crate::endpoint::ServiceId;
use crate::sync::{Mutex, lock};
use crate::time::Moment;

/// The next deadline of each service, and the waker of the task that waits for the earliest.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    inner: Mutex<Due>,
}

#[derive(Debug, Default)]
struct Due {
    by_time: BTreeSet<(Moment, ServiceId)>,
    by_service: HashMap<ServiceId, Moment>,
    waker: Option<Waker>,
}

impl Timers {
    /// Sets the deadline of a service; `None` removes it.
    pub(crate) fn set(&self, id: &ServiceId, due: Option<Moment>) {
        let mut inner = lock(&self.inner);
        if inner.by_service.get(id).copied() == due {
            return;
        }
        if let Some(before) = inner.by_service.remove(id) {
            inner.by_time.remove(&(before, id.clone()));
        }
        if let Some(due) = due {
            inner.by_service.insert(id.clone(), due);
            inner.by_time.insert((due, id.clone()));
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn earliest(&self) -> Option<Moment> {
        lock(&self.inner).by_time.first().map(|(due, _)| *due)
    }

    pub(crate) fn take_due(&self, now: Moment) -> Vec<ServiceId> {
        let mut inner = lock(&self.inner);
        let mut due = Vec::new();
        while let Some((at, _)) = inner.by_time.first()
            && *at <= now
            && let Some((_, id)) = inner.by_time.pop_first()
        {
            inner.by_service.remove(&id);
            due.push(id);
        }
        due
    }

    /// Waits until a deadline earlier than `than` is set; `None`: until any is.
    pub(crate) async fn earlier_than(&self, than: Option<Moment>) {
        poll_fn(|context| self.poll_earlier(than, context)).await;
    }

    fn poll_earlier(&self, than: Option<Moment>, context: &Context<'_>) -> Poll<()> {
        let mut inner = lock(&self.inner);
        let earliest = inner.by_time.first().map(|(due, _)| *due);
        let earlier = earliest.is_some_and(|earliest| than.is_none_or(|than| earliest < than));
        if earlier {
            return Poll::Ready(());
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
