//! Keeps what idle policies have learned in `ConfigMap`s, so that a restart of the controller does not lose it.
//!
//! Every replica learns by itself, since it hears all reports. It reads the objects when it starts, for what was learned before,
//! and the leader writes what has changed, rarely, and when it stops. What cannot be read is as if it was never learned.

mod shards;
mod store;

use std::time::Duration;

use rouse_core::scale::{Autoscaler, STATE_BYTES};
use rouse_core::time::Moment;
use tokio::task::{JoinError, JoinSet};

use super::AutoscaleController;
use super::state::AutoscaleState;
use super::target::TargetKey;
use crate::events::ClusterEvent;
pub(super) use shards::Shards;
use shards::{Learned, ShardUpdate, ShardWrite, entry_key};
use store::LearnedStore;

/// The least time between two writes.
const EVERY: Duration = Duration::from_mins(5);
/// When objects that could not be read are read again.
const RETRY: Duration = Duration::from_mins(1);

/// When the objects are read and written.
pub(super) struct LearnedStateSync {
    store: LearnedStore,
    /// At most one request at a time.
    job: JoinSet<LearnedEnd>,
    /// The term in which they were read last: a new leader needs their present versions.
    read_in: Option<u64>,
    /// They are not read before.
    read_after: Moment,
    /// They are not written before.
    write_after: Moment,
    /// What was reported last, so that it is not reported again and again.
    failure: Option<String>,
}

/// What became of a request.
pub(super) struct LearnedResult(Result<LearnedEnd, JoinError>);

enum LearnedEnd {
    Read { term: u64, read: Result<Shards, String> },
    Written { updates: Vec<ShardUpdate>, failure: Option<String> },
}

impl LearnedStateSync {
    pub(super) fn new(controller: &AutoscaleController) -> Self {
        Self {
            store: LearnedStore {
                client: controller.watches.client().clone(),
                namespace: controller.settings.own_namespace.clone(),
                leadership: controller.leadership.clone(),
            },
            job: JoinSet::new(),
            read_in: None,
            read_after: Moment::ZERO,
            write_after: Moment::ZERO,
            failure: None,
        }
    }

    /// Begins to read or to write, if that is due. `term` is the last term in which this process was elected.
    pub(super) fn begin(&mut self, state: &AutoscaleState, now: Moment, term: u64, leads: bool) {
        if !self.job.is_empty() {
            return;
        }
        if self.read_in != Some(term) {
            if now >= self.read_after {
                self.read_after = now + RETRY;
                let store = self.store.clone();
                self.job.spawn(async move { LearnedEnd::Read { term, read: store.read().await } });
            }
        } else if leads && now >= self.write_after {
            self.write_after = now + EVERY;
            self.write(state);
        }
    }

    /// Begins to write what has changed since the last time, for the successor of this process.
    pub(super) fn begin_last(&mut self, state: &AutoscaleState, leads: bool) {
        if leads && self.job.is_empty() {
            self.write(state);
        }
    }

    fn write(&mut self, state: &AutoscaleState) {
        let (store, writes) = (self.store.clone(), state.learned_writes());
        if !writes.is_empty() {
            self.job.spawn(async move {
                let (updates, failure) = store.write(writes).await;
                LearnedEnd::Written { updates, failure }
            });
        }
    }

    /// When [`LearnedStateSync::begin`] is due.
    pub(super) fn next_due(&self, term: u64, leads: bool) -> Option<Moment> {
        match self.read_in {
            _ if !self.job.is_empty() => None,
            Some(read_in) if read_in == term => leads.then_some(self.write_after),
            _ => Some(self.read_after),
        }
    }

    /// The next request that ends.
    pub(super) async fn ended(&mut self) -> Option<LearnedResult> {
        self.job.join_next().await.map(LearnedResult)
    }

    /// Applies the result of a request. Returns a failure that was not returned before.
    fn apply(&mut self, state: &mut AutoscaleState, now: Moment, result: LearnedResult) -> Option<String> {
        let failure = match result.0 {
            Ok(LearnedEnd::Read { term, read: Ok(shards) }) => {
                self.read_in = Some(term);
                self.write_after = now + EVERY;
                state.learned_read(now, shards);
                None
            }
            Ok(LearnedEnd::Read { read: Err(why), .. }) => Some(why),
            Ok(LearnedEnd::Written { updates, failure }) => {
                state.learned.get_or_insert_default().update(updates);
                failure
            }
            Err(error) => Some(error.to_string()),
        };
        let news = failure.clone().filter(|why| self.failure.as_ref() != Some(why));
        self.failure = failure;
        news
    }

    /// Ends what is under way.
    pub(super) async fn shutdown(&mut self) {
        self.job.shutdown().await;
    }
}

impl AutoscaleController {
    /// Applies the result of a request for learned state.
    pub(super) fn learned_ended(&self, round: &mut LearnedStateSync, result: LearnedResult) {
        if let Some(why) = round.apply(&mut self.state(), self.now(), result) {
            self.report(ClusterEvent::WriteFailed(why));
        }
    }
}

impl AutoscaleState {
    /// The objects were read. The first time, they know more than the targets, which have only just been seen; later, a target
    /// knows at least as much.
    fn learned_read(&mut self, now: Moment, shards: Shards) {
        let first = self.learned.is_none();
        self.learned = Some(shards);
        let targets: Vec<TargetKey> = self.fleet.targets().cloned().collect();
        for key in targets {
            if first || self.learned_by(&key).is_none() {
                self.recall(now, &key);
            }
        }
    }

    /// What the idle policy of a target has learned by now; `None`: nothing.
    pub(super) fn learned_by(&self, key: &TargetKey) -> Option<[u8; STATE_BYTES]> {
        self.fleet.scaler(key).and_then(Autoscaler::learned)
    }

    /// Restores what the objects have of a target.
    pub(super) fn recall(&mut self, now: Moment, key: &TargetKey) {
        if let Some(bytes) = self.learned.as_ref().and_then(|learned| learned.get(key)) {
            // By another version of Rouse, or edited: it is learned again.
            self.fleet.restore_learned(now, key, bytes).ok();
        }
    }

    /// What to write, so that the objects have what was learned by now. An entry goes with its target.
    fn learned_writes(&self) -> Vec<ShardWrite> {
        let Some(shards) = &self.learned else { return Vec::new() };
        let entry = |key: &TargetKey| {
            let bytes =
                self.learned_by(key).map(Vec::from).or_else(|| shards.get(key).map(<[u8]>::to_vec))?;
            Some((entry_key(key)?, bytes))
        };
        let learned: Learned = self.targets.keys().filter_map(entry).collect();
        shards.writes(&learned)
    }
}
