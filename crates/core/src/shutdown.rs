//! Graceful shutdown: the phases (serving, not ready, draining, stopped), and a counter of the work in progress.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};
use crate::time::Moment;

/// The phase of a shutdown. Only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownPhase {
    /// Normal operation.
    Serving,
    /// Not ready, but still accepts connections: load balancers need time to notice.
    NotReady {
        /// When the listeners close.
        until: Moment,
    },
    /// The listeners are closed; work in progress continues.
    Draining {
        /// When the remaining work is aborted.
        until: Moment,
    },
    /// All work is finished, or the timeout is over.
    Stopped {
        /// Whether all work was finished.
        clean: bool,
    },
}

/// The phases of a shutdown: serving → not ready → draining → stopped.
#[derive(Debug, Clone)]
pub struct Shutdown {
    delay: Duration,
    timeout: Duration,
    phase: ShutdownPhase,
}

impl Shutdown {
    /// `delay` is the time from "not ready" to closed listeners, `timeout` the time after that for work in progress.
    pub fn new(delay: Duration, timeout: Duration) -> Self {
        Self { delay, timeout, phase: ShutdownPhase::Serving }
    }

    /// The current phase.
    pub fn phase(&self) -> ShutdownPhase {
        self.phase
    }

    /// A shutdown signal arrived. The first begins the shutdown, the second stops at once.
    pub fn signal(&mut self, now: Moment) -> ShutdownPhase {
        self.phase = match self.phase {
            ShutdownPhase::Serving => ShutdownPhase::NotReady { until: now + self.delay },
            ShutdownPhase::NotReady { .. } | ShutdownPhase::Draining { .. } => {
                ShutdownPhase::Stopped { clean: false }
            }
            stopped @ ShutdownPhase::Stopped { .. } => stopped,
        };
        self.phase
    }

    /// Moves to the phase that follows from the time and from `under_way`, the number of requests, streams, upgraded
    /// connections and holds in progress.
    pub fn advance(&mut self, now: Moment, under_way: usize) -> ShutdownPhase {
        if let ShutdownPhase::NotReady { until } = self.phase
            && until <= now
        {
            // Counted from the end of the delay, not from this call, which may come late.
            self.phase = ShutdownPhase::Draining { until: until + self.timeout };
        }
        if let ShutdownPhase::Draining { until } = self.phase
            && (under_way == 0 || until <= now)
        {
            self.phase = ShutdownPhase::Stopped { clean: under_way == 0 };
        }
        self.phase
    }

    /// When the current phase ends at the latest.
    pub fn due(&self) -> Option<Moment> {
        match self.phase {
            ShutdownPhase::NotReady { until } | ShutdownPhase::Draining { until } => Some(until),
            ShutdownPhase::Serving | ShutdownPhase::Stopped { .. } => None,
        }
    }
}

/// Counts the work in progress, and notifies waiters when it reaches zero.
#[derive(Debug, Default)]
pub struct InFlightCounter {
    count: AtomicUsize,
    idle: Mutex<Vec<Waker>>,
}

/// One piece of work in progress. Dropping it ends the work.
#[derive(Debug)]
pub struct InFlightGuard(Arc<InFlightCounter>);

impl InFlightCounter {
    /// Counts new work until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlightGuard {
        self.count.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(Arc::clone(self))
    }

    /// How much work is in progress.
    pub fn count(&self) -> usize {
        // Acquire: a caller that sees zero also sees the effects of the work that ended.
        self.count.load(Ordering::Acquire)
    }

    /// Waits until no work is in progress.
    pub async fn idle(&self) {
        poll_fn(|context| {
            let mut idle = lock(&self.idle);
            // Register the waker of a task once: otherwise repeated polls would make the list grow without limit.
            if !idle.iter().any(|waker| waker.will_wake(context.waker())) {
                idle.push(context.waker().clone());
            }
            drop(idle);
            // Register before reading the count: the reverse order misses work that ends in between.
            if self.count() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let wakers = std::mem::take(&mut *lock(&self.0.idle));
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;

    fn shutdown() -> Shutdown {
        Shutdown::new(Duration::from_secs(5), Duration::from_secs(30))
    }

    #[test]
    fn it_stops_as_soon_as_the_work_is_done_but_not_before_the_delay() {
        let mut leaving = shutdown();
        assert_eq!(leaving.advance(Moment::from_secs(100), 0), ShutdownPhase::Serving);
        leaving.signal(Moment::from_secs(100));
        assert_eq!(
            leaving.advance(Moment::from_secs(104), 0),
            ShutdownPhase::NotReady { until: Moment::from_secs(105) }
        );
        assert_eq!(
            leaving.advance(Moment::from_secs(105), 1),
            ShutdownPhase::Draining { until: Moment::from_secs(135) }
        );
        assert_eq!(leaving.advance(Moment::from_secs(106), 0), ShutdownPhase::Stopped { clean: true });
    }

    #[test]
    fn work_that_does_not_end_is_given_up_when_the_time_is_up() {
        let mut leaving = shutdown();
        leaving.signal(Moment::ZERO);
        leaving.advance(leaving.due().unwrap(), 1);
        let end = leaving.due().unwrap();
        assert_eq!(end, Moment::from_secs(35));
        assert_eq!(leaving.advance(end, 1), ShutdownPhase::Stopped { clean: false });
        assert_eq!(leaving.due(), None);
    }

    #[test]
    fn a_second_signal_stops_at_once() {
        let mut leaving = shutdown();
        leaving.signal(Moment::ZERO);
        assert_eq!(leaving.signal(Moment::ZERO), ShutdownPhase::Stopped { clean: false });
    }

    #[tokio::test(start_paused = true)]
    async fn idle_waits_for_the_last_work() {
        let under_way = Arc::new(InFlightCounter::default());
        let (first, second) = (under_way.begin(), under_way.begin());
        let mut idle = pin!(under_way.idle());
        let poll = |idle: Pin<&mut _>| Future::poll(idle, &mut Context::from_waker(Waker::noop()));
        assert!(poll(idle.as_mut()).is_pending());
        drop(first);
        assert!(poll(idle.as_mut()).is_pending());
        drop(second);
        assert!(poll(idle.as_mut()).is_ready());
    }
}

/// Loom models (`make loom`): every interleaving of work that ends and a task that waits for it.
#[cfg(all(test, loom))]
mod models {
    use loom::future::block_on;
    use loom::thread;

    use super::*;

    #[test]
    fn the_end_of_the_last_work_is_never_missed() {
        loom::model(|| {
            let under_way = Arc::new(InFlightCounter::default());
            let works = [under_way.begin(), under_way.begin()].map(|work| thread::spawn(move || drop(work)));
            block_on(under_way.idle());
            works.into_iter().for_each(|work| work.join().unwrap());
        });
    }
}
