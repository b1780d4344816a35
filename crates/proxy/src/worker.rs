//! One worker: one thread, one runtime, and everything that its requests need and no other thread touches.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::service::Service;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::crowd::Crowd;
use crate::deadline::Deadlines;
use crate::gateway::Gateway;
use crate::pool::{Pools, Room};
use crate::signal::Signal;

/// How often connections that nobody uses are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// What the requests of one worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) deadlines: Rc<Deadlines>,
    pub(crate) crowd: Rc<Crowd>,
    /// Owns every task of the worker.
    pub(crate) tasks: TaskTracker,
    /// Stop accepting; connections end with what they have.
    pub(crate) drain: Signal,
    /// The drain is over: whatever is left ends now.
    pub(crate) close: Signal,
    /// For connections to pods that nobody uses.
    pub(crate) room: Rc<Room>,
    pools: RefCell<HashMap<ServiceId, Rc<Pools>>>,
    dice: Cell<u64>,
}

impl Worker {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        seed: u64,
        workers: usize,
        drain: CancellationToken,
        close: CancellationToken,
    ) -> Rc<Self> {
        Rc::new(Self {
            deadlines: Deadlines::new(gateway.settings.clock),
            crowd: Crowd::new(gateway.settings.clock, gateway.settings.limits, workers),
            room: Room::new(&gateway.settings.limits, workers),
            tasks: TaskTracker::new(),
            drain: Signal::of(drain),
            close: Signal::of(close),
            pools: RefCell::default(),
            dice: Cell::new(seed),
            gateway,
        })
    }

    /// Fresh randomness: splitmix64.
    pub(crate) fn roll(&self) -> u64 {
        let state = self.dice.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.dice.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The connections to the pods of `service`. They follow its snapshots from the first time on.
    pub(crate) fn pools(self: &Rc<Self>, service: &Arc<Service>) -> Rc<Pools> {
        if let Some(pools) = self.pools.borrow().get(service.id()).filter(|pools| pools.are_of(service)) {
            return Rc::clone(pools);
        }
        // New, or removed and declared again: another service of the same name.
        let pools = Rc::new(Pools::new(service));
        self.pools.borrow_mut().insert(service.id().clone(), Rc::clone(&pools));
        let (worker, following) = (Rc::clone(self), Rc::clone(&pools));
        let mut snapshots = service.subscribe();
        self.tasks.spawn_local(async move {
            loop {
                let snapshot = tokio::select! {
                    () = worker.close.cancelled() => break,
                    snapshot = snapshots.changed() => snapshot,
                };
                following.follow(&snapshot);
                if snapshot.gone {
                    break;
                }
            }
            let mut all = worker.pools.borrow_mut();
            if all.get(following.service()).is_some_and(|newest| Rc::ptr_eq(newest, &following)) {
                all.remove(following.service());
            }
        });
        pools
    }

    /// Closes what has been idle for too long, for ever.
    pub(crate) async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            for pools in self.pools.borrow().values() {
                pools.sweep();
            }
        }
    }
}
