//! What the tasks of one worker thread share: clock, deadlines, shutdown signals, task ownership and random numbers.

mod deadlines;
mod shutdown;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use rouse_core::random::Random;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::deadlines::{DeadlineFuture, Deadlines, Watched};
pub(crate) use self::shutdown::ShutdownSignal;

/// The services of one worker thread. No other thread touches them.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) clock: TokioClock,
    pub(crate) deadlines: Rc<Deadlines>,
    /// Owns every task of the worker.
    pub(crate) tasks: TaskTracker,
    /// Stop accepting; connections end after the requests that they have.
    pub(crate) drain: ShutdownSignal,
    /// The drain is over: everything that is left ends now.
    pub(crate) close: ShutdownSignal,
    random: Cell<Random>,
}

impl Runtime {
    pub(crate) fn new(clock: TokioClock, drain: CancellationToken, close: CancellationToken) -> Rc<Self> {
        Rc::new(Self {
            clock,
            deadlines: Deadlines::new(clock),
            tasks: TaskTracker::new(),
            drain: ShutdownSignal::of(drain),
            close: ShutdownSignal::of(close),
            // Each worker has a seed of the system: one derived from that of another worker would repeat its numbers.
            random: Cell::new(Random::new(system_seed())),
        })
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A future that ends soon after `at`, by the worker's coarse timer.
    pub(crate) fn deadline(&self, at: Moment) -> DeadlineFuture {
        self.deadlines.at(at)
    }

    /// A fresh random number.
    pub(crate) fn random(&self) -> u64 {
        let mut random = self.random.get();
        let number = random.next_u64();
        self.random.set(random);
        number
    }

    /// Runs `task` on this thread. The worker waits for it before the thread ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
        self.tasks.spawn_local(task)
    }

    /// Drives deadlines and signals. Never ends.
    pub(crate) async fn run(&self) {
        tokio::join!(self.deadlines.run(), self.drain.follow(), self.close.follow());
    }
}

/// The first of two futures to end; `None` if it was the second. When both are ready, the first wins.
pub(crate) async fn before<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => second.as_mut().poll(context).map(|()| None),
    })
    .await
}
