//! Runs at most one task per key at a time; concurrent callers share its result.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The running tasks by key. Dropping it aborts them.
#[derive(Debug)]
pub(super) struct SingleFlight<K, V> {
    running: Mutex<Running<K, V>>,
    limit: usize,
}

#[derive(Debug)]
struct Running<K, V> {
    /// Finished tasks stay here until their key is asked for again or the limit is reached.
    by_key: HashMap<K, watch::Receiver<Option<V>>>,
    tasks: JoinSet<()>,
}

/// A running task. The task goes on when this is dropped: a client that disconnects takes nothing from the others.
#[derive(Debug)]
pub(super) struct Flight<V>(watch::Receiver<Option<V>>);

impl<K, V> SingleFlight<K, V>
where
    K: Eq + Hash,
    V: Clone + Send + Sync + 'static,
{
    /// No task yet, and never more than `limit` at once.
    pub(super) fn new(limit: usize) -> Self {
        let running = Running { by_key: HashMap::new(), tasks: JoinSet::new() };
        Self { running: Mutex::new(running), limit }
    }

    /// The running task of `key`, or else the one that `begin` makes. `None` if `begin` makes none, or too many run.
    ///
    /// `begin` runs under the lock, so that no two callers begin at once. It must be quick.
    pub(super) fn join<F>(&self, key: K, begin: impl FnOnce() -> Option<F>) -> Option<Flight<V>>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Running { by_key, tasks } = &mut *running;
        if let Some(flight) = by_key.get(&key).filter(|flight| is_running(flight)) {
            return Some(Flight(flight.clone()));
        }
        while tasks.try_join_next().is_some() {}
        if by_key.len() >= self.limit {
            by_key.retain(|_, flight| is_running(flight));
        }
        if by_key.len() >= self.limit {
            return None;
        }
        let work = begin()?;
        let (result, flight) = watch::channel(None);
        tasks.spawn(async move {
            result.send_replace(Some(work.await));
        });
        by_key.insert(key, flight.clone());
        Some(Flight(flight))
    }
}

/// The task drops its end of the channel when it is done.
fn is_running<V>(flight: &watch::Receiver<Option<V>>) -> bool {
    flight.has_changed().is_ok()
}

impl<V: Clone> Flight<V> {
    /// The result, unless it takes longer than `within` or the task panicked.
    pub(super) async fn result(mut self, within: Duration) -> Option<V> {
        let landed = timeout(within, self.0.wait_for(Option::is_some)).await;
        landed.ok()?.ok()?.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_task_and_a_later_one_starts_another() {
        let (flights, go) = (SingleFlight::new(8), Arc::new(Notify::new()));
        let made = Arc::new(AtomicU32::new(0));
        let begin = || {
            let (go, made) = (Arc::clone(&go), Arc::clone(&made));
            Some(async move {
                go.notified().await;
                made.fetch_add(1, Ordering::Relaxed)
            })
        };
        let [one, other] = [(); 2].map(|()| flights.join("key", begin).unwrap());
        go.notify_one();
        assert_eq!(tokio::join!(one.result(PATIENCE), other.result(PATIENCE)), (Some(0), Some(0)));
        go.notify_one();
        assert_eq!(flights.join("key", begin).unwrap().result(PATIENCE).await, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_who_leaves_or_waits_no_longer_does_not_end_the_task() {
        let (flights, go) = (SingleFlight::new(8), Arc::new(Notify::new()));
        let begin = || {
            let go = Arc::clone(&go);
            Some(async move { go.notified().await })
        };
        drop(flights.join("key", begin));
        let late = flights.join("key", begin).unwrap();
        assert_eq!(late.result(Duration::from_millis(1)).await, None);
        let again = flights.join("key", || -> Option<std::future::Ready<()>> { panic!("it still runs") });
        go.notify_one();
        assert_eq!(again.unwrap().result(PATIENCE).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_bounded_and_finished_ones_make_room() {
        let flights = SingleFlight::new(2);
        let hanging = || Some(std::future::pending::<u8>());
        let quick = flights.join(1, || Some(std::future::ready(7))).unwrap();
        assert!(flights.join(2, hanging).is_some());
        assert!(flights.join(3, hanging).is_none(), "both still run");
        assert_eq!(quick.result(PATIENCE).await, Some(7));
        assert!(flights.join(3, hanging).is_some());
        assert!(flights.join(4, hanging).is_none());
    }
}
