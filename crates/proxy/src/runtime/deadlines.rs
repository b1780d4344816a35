//! Deadlines that cost a request almost nothing: one coarse timer per worker instead of one per request.
//!
//! A timer of the runtime per request took 9 % of a proxied request's time. Almost no request ever needs its
//! deadline, so deadlines are entries of a list that one task checks every [`TICK`].

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use slab::Slab;
use tokio::sync::Notify;

/// How late a deadline may be noticed.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// The deadlines of one worker.
#[derive(Debug)]
pub(crate) struct Deadlines {
    clock: TokioClock,
    list: RefCell<Slab<Entry>>,
    /// Notified when the list gets its first deadline: a worker without deadlines must not tick.
    begun: Notify,
}

#[derive(Debug)]
struct Entry {
    at: Moment,
    told: Option<Told>,
    over: bool,
}

/// What is notified of a deadline.
#[derive(Debug)]
enum Told {
    Task(Waker),
    Watched(Weak<dyn Watched>),
}

/// Something that has a deadline without a task that waits for it: a task for each would cost more than most requests.
pub(crate) trait Watched: fmt::Debug {
    /// The deadline is over. Returns the next one, if there is one.
    fn on_deadline(&self, now: Moment) -> Option<Moment>;
}

impl Deadlines {
    pub(crate) fn new(clock: TokioClock) -> Rc<Self> {
        Rc::new(Self { clock, list: RefCell::default(), begun: Notify::new() })
    }

    /// A future that ends soon after `at`.
    pub(crate) fn at(self: &Rc<Self>, at: Moment) -> DeadlineFuture {
        let mut list = self.list.borrow_mut();
        if list.is_empty() {
            self.begun.notify_one();
        }
        let place = list.insert(Entry { at, told: None, over: false });
        DeadlineFuture { deadlines: Rc::clone(self), place }
    }

    /// Checks the list. Never ends.
    pub(crate) async fn run(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if self.list.borrow().is_empty() {
                self.begun.notified().await;
            }
            ticks.tick().await;
            self.look(self.clock.now());
        }
    }

    fn look(&self, now: Moment) {
        let mut over = Vec::new();
        for (place, entry) in self.list.borrow_mut().iter_mut().filter(|(_, entry)| entry.at <= now) {
            entry.over = true;
            over.extend(entry.told.take().map(|told| (place, told)));
        }
        // With the list free again: what is notified may add another deadline.
        for (place, told) in over {
            match told {
                Told::Task(waker) => waker.wake(),
                Told::Watched(watched) => self.tell(place, &watched, now),
            }
        }
    }

    fn tell(&self, place: usize, watched: &Weak<dyn Watched>, now: Moment) {
        let Some(alive) = watched.upgrade() else { return };
        let next = alive.on_deadline(now);
        if let (Some(at), Some(entry)) = (next, self.list.borrow_mut().get_mut(place)) {
            *entry = Entry { at, told: Some(Told::Watched(Weak::clone(watched))), over: false };
        }
    }
}

/// A future that ends soon after its deadline.
#[derive(Debug)]
pub(crate) struct DeadlineFuture {
    deadlines: Rc<Deadlines>,
    place: usize,
}

impl DeadlineFuture {
    /// Notifies `watched`, instead of a task that waits.
    pub(crate) fn watch(&self, watched: Weak<dyn Watched>) {
        if let Some(entry) = self.deadlines.list.borrow_mut().get_mut(self.place) {
            entry.told = Some(Told::Watched(watched));
        }
    }
}

impl Future for DeadlineFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut list = self.deadlines.list.borrow_mut();
        match list.get_mut(self.place) {
            Some(entry) if !entry.over => {
                match &mut entry.told {
                    Some(Told::Task(waker)) => waker.clone_from(context.waker()),
                    other => *other = Some(Told::Task(context.waker().clone())),
                }
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for DeadlineFuture {
    fn drop(&mut self) {
        self.deadlines.list.borrow_mut().try_remove(self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_noticed_within_a_tick_and_never_early() {
        let clock = TokioClock::new();
        let deadlines = Deadlines::new(clock);
        for after in [1, 19, 20, 500] {
            let (began, after) = (clock.now(), Duration::from_millis(after));
            tokio::select! {
                () = deadlines.run() => {}
                () = deadlines.at(began + after) => {}
            }
            let took = clock.now().since(began);
            assert!(took >= after && took <= after + TICK, "{after:?} was noticed after {took:?}");
        }
        assert!(deadlines.list.borrow().is_empty(), "a deadline leaves nothing behind");
    }

    #[derive(Debug, Default)]
    struct Calls(Cell<usize>);

    impl Watched for Calls {
        fn on_deadline(&self, now: Moment) -> Option<Moment> {
            self.0.set(self.0.get() + 1);
            // A second time, and no third.
            (self.0.get() == 1).then(|| now + Duration::from_millis(100))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watched_value_is_notified_until_it_returns_no_deadline() {
        let clock = TokioClock::new();
        let deadlines = Deadlines::new(clock);
        let soon = clock.now() + Duration::from_millis(100);
        let (kept, gone) = (Rc::new(Calls::default()), Rc::new(Calls::default()));
        let watch = |calls: &Rc<Calls>| {
            let due = deadlines.at(soon);
            let calls: Rc<dyn Watched> = Rc::clone(calls) as _;
            due.watch(Rc::downgrade(&calls));
            due
        };
        let _due = watch(&kept);
        drop(watch(&gone));
        for (millis, calls) in [(99, 0), (190, 1), (300, 2), (500, 2)] {
            tokio::select! {
                () = deadlines.run() => {}
                () = clock.sleep_until(Moment::from_millis(millis)) => {}
            }
            assert_eq!((kept.0.get(), gone.0.get()), (calls, 0), "after {millis} ms");
        }
    }
}
