//! The loop of the autoscaler: takes decisions, carries them out, and notices who leads.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::ZeroPreparation;
use rouse_core::time::Moment;
use serde_json::Value;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::learned::LearnedStateSync;
use super::reconcile::{Job, JobEnd, ReconcileContext, UnderWay, WriteEnd, WriteJob};
use super::state::AutoscaleState;
use super::status::StatusThrottle;
use super::target_state::Observation;
use super::{AutoscaleController, TargetKey};
use crate::client::watch::WatchState;
use crate::client::{ObjectKind, at};
use crate::events::ClusterEvent;
use crate::objects::workload::Workload;
use crate::routes::EventReason;
use crate::wake::ScaleWriteError;

/// The least time between two turns: a burst of changes is one change.
const PAUSE: Duration = Duration::from_millis(10);
/// How often reporters that are gone are forgotten.
const LIST_AGAIN: Duration = Duration::from_mins(1);
/// How long the last writes may take.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// What the loop remembers from one pass to the next.
pub(super) struct Driver {
    /// The term for which all targets were decided about anew.
    term: u64,
    /// Whether this process led at the last turn.
    led: bool,
    owners_known: bool,
    listed: Moment,
    statuses: StatusThrottle,
    learned: LearnedStateSync,
    jobs: JoinSet<JobEnd>,
    /// What is under way, in case it panics.
    under_way: HashMap<Id, Job>,
}

impl AutoscaleController {
    /// Decides and writes until `cancel`.
    pub(super) async fn drive(self: Arc<Self>, cancel: CancellationToken) {
        let work = async {
            self.watches.all_seen().await;
            self.synced.send_replace(true);
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = work => {}
        }
        let mut driver = Driver {
            term: 0,
            led: false,
            owners_known: true,
            listed: self.now(),
            statuses: StatusThrottle::default(),
            learned: LearnedStateSync::new(&self),
            jobs: JoinSet::new(),
            under_way: HashMap::new(),
        };
        let (mut leader, mut watches) = (self.leadership.state(), self.watches.changes());
        while !cancel.is_cancelled() {
            leader.mark_unchanged();
            watches.mark_unchanged();
            let due = self.turn(&mut driver);
            sleep_until(Instant::now() + PAUSE).await;
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                Some(ended) = driver.jobs.join_next_with_id() => self.ended(&mut driver, ended),
                Some(end) = driver.learned.ended() => self.learned_ended(&mut driver.learned, end),
                () = self.changed.notified() => {}
                () = self.unwritten.notified() => driver.statuses.again(),
                Ok(()) = leader.changed() => {}
                Ok(()) = watches.changed() => {}
                () = at(due) => {}
            }
        }
        self.finish(&mut driver).await;
    }

    /// Decides about everything that is due, and begins what follows. Returns when to look again.
    fn turn(self: &Arc<Self>, driver: &mut Driver) -> Option<Instant> {
        let (now, time_of_day) = (self.now(), (self.settings.time_of_day)());
        let mut state = self.state();
        state.fleet.set_wall_clock(now, time_of_day.into());
        let leads = self.notice_leader(driver, &mut state, now);
        if std::mem::replace(&mut driver.led, leads) && !leads {
            state.deposed();
        }
        let context = self.context(now, time_of_day, leads);
        let known = std::mem::replace(&mut driver.owners_known, context.owners.is_ok());
        if !known && driver.owners_known {
            state.owners_known();
        }
        if now.since(driver.listed) >= LIST_AGAIN {
            driver.listed = now;
            state.list_gateways(now);
        }
        state.resolve(now);
        state.follow_envoys(now);
        for (_, reason) in state.decide(now) {
            self.metrics.decided(reason);
        }
        let jobs = state.jobs(&context, under_way(&driver.under_way));
        let mut status_due = None;
        if self.settings.write_status && context.leads {
            driver.statuses.put(&mut state, &self.statuses, now, time_of_day);
            status_due = driver.statuses.next_due(&state);
        } else {
            // A process that is elected begins with all routes.
            state.touched.clear();
        }
        driver.learned.begin(&state, now, driver.term, leads);
        let due = [state.next_due(), status_due, driver.learned.next_due(driver.term, leads)];
        let messages = state.park_owned(now, leads);
        drop(state);
        self.send_zero(messages);
        for job in jobs {
            self.begin(driver, job);
        }
        due.into_iter()
            .flatten()
            .chain([driver.listed + LIST_AGAIN])
            .min()
            .map(|due| Instant::now() + due.since(now))
    }

    fn context(&self, now: Moment, time_of_day: SystemTime, leads: bool) -> ReconcileContext {
        let since = time_of_day.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        ReconcileContext {
            now,
            unix_now: since.as_secs(),
            leads,
            owners: self.owners_known(),
            prepares: self.settings.zero_gate.is_some(),
        }
    }

    /// Whether it is known what else scales workloads, or why not.
    pub fn owners_known(&self) -> Result<(), String> {
        for kind in [ObjectKind::HPA, ObjectKind::SCALED_OBJECT] {
            let report = self.watches.report(kind);
            match report.map(|report| (report.synced, report.state)) {
                Some((_, WatchState::Broken { why, .. })) => return Err(why),
                Some((true, _)) => {}
                _ => return Err(format!("{}s have not been listed yet", kind.name)),
            }
        }
        Ok(())
    }

    /// Decides about all targets anew when this process begins to lead. Returns whether it leads.
    fn notice_leader(&self, driver: &mut Driver, state: &mut AutoscaleState, now: Moment) -> bool {
        let leader = self.leadership.state().borrow().clone();
        if leader.leads && driver.term != leader.term {
            driver.term = leader.term;
            state.elected(now);
            driver.statuses = StatusThrottle::default();
            self.statuses.retain(|_| false);
        }
        leader.leads && self.leadership.may_write()
    }

    fn begin(self: &Arc<Self>, driver: &mut Driver, job: Job) {
        let controller = Arc::clone(self);
        let spawned = match job.clone() {
            Job::Read { key, workload } => driver.jobs.spawn(async move {
                let seen = controller.read(&key, &workload).await;
                JobEnd::Read(key, seen)
            }),
            Job::Prepare { key, services } => {
                let preparation = self.begin_preparation(&services);
                driver.jobs.spawn(async move {
                    let ready = controller.prepare(&services, preparation).await;
                    JobEnd::Prepared(key, ready)
                })
            }
            Job::Write(job) => driver.jobs.spawn(async move {
                let end = controller.write(&job).await;
                JobEnd::Written(job, end)
            }),
            Job::Cancel { services } => {
                let gate = self.settings.zero_gate.iter();
                gate.for_each(|gate| services.iter().for_each(|service| gate.cancel_zero(service)));
                let messages = self.state().end_requests(&services);
                self.send_zero(messages);
                self.parking.send_replace(());
                return;
            }
        };
        driver.under_way.insert(spawned.id(), job);
    }

    /// Reads a workload that is not watched.
    async fn read(&self, key: &TargetKey, workload: &Workload) -> Result<Observation, String> {
        let scale = self.scale.read(&key.namespace, workload).await;
        let scale = scale.map_err(|failure| failure.detail().to_owned())?;
        let object = self.scale.object(&key.namespace, workload).await;
        let number = |path: &str| {
            let number = object.as_ref()?.pointer(path).and_then(Value::as_u64)?;
            u32::try_from(number).ok()
        };
        // Every workload of Kubernetes says how many of its pods are ready. For one of another kind that does not, those that
        // exist count.
        let ready = number("/status/readyReplicas").or_else(|| number("/status/availableReplicas"));
        let ready = ready.unwrap_or(scale.pods.min(scale.replicas));
        let version = scale.version.as_str().into();
        // Not when the read began: after a slow one it would have to be read again and again.
        Ok(Observation { replicas: scale.replicas, ready, version, at: self.now() })
    }

    /// Whether all other proxies are ready for these services at zero.
    async fn prepare(&self, services: &BTreeSet<ServiceId>, preparation: ZeroPreparation) -> bool {
        let deadline = Instant::now() + self.settings.prepare_deadline;
        if let Some(gate) = &self.settings.zero_gate {
            for service in services {
                if !timeout_at(deadline, gate.prepare_zero(service)).await.unwrap_or(false) {
                    return false;
                }
            }
        }
        self.prepare_envoys(preparation).await
    }

    async fn write(&self, job: &WriteJob) -> WriteEnd {
        let (namespace, version) = (&job.key.namespace, &job.token.0);
        let may_write = || self.leadership.may_write();
        let written = self.scale.write(namespace, &job.workload, job.change.to, version, may_write).await;
        match written {
            Ok(scale) => WriteEnd::Written(scale.version),
            Err(ScaleWriteError::Conflict) => WriteEnd::Conflict,
            Err(ScaleWriteError::NotAllowed) => WriteEnd::NotLeader,
            Err(ScaleWriteError::Failed(failure)) => WriteEnd::Failed(failure.detail().to_owned()),
        }
    }

    /// Takes the result of a job, also of one that panicked.
    fn ended(&self, driver: &mut Driver, ended: Result<(Id, JobEnd), tokio::task::JoinError>) {
        let end = match ended {
            Ok((id, end)) => {
                driver.under_way.remove(&id);
                end
            }
            Err(error) => match driver.under_way.remove(&error.id()) {
                Some(Job::Read { key, .. }) => JobEnd::Read(key, Err(error.to_string())),
                Some(Job::Prepare { key, .. }) => JobEnd::Prepared(key, false),
                Some(Job::Write(job)) => JobEnd::Written(job, WriteEnd::Failed(error.to_string())),
                Some(Job::Cancel { .. }) | None => return,
            },
        };
        if let JobEnd::Written(job, end) = &end {
            self.tell(job, end);
        }
        self.state().ended(self.now(), &end);
    }

    /// Tells people and metrics what became of a write.
    fn tell(&self, job: &WriteJob, end: &WriteEnd) {
        let change = &job.change;
        self.metrics.wrote(change.from, change.to, end);
        let (reason, message, event) = match end {
            WriteEnd::Written(_) => {
                let up = change.to > change.from;
                let reason = if up { EventReason::ScaledUp } else { EventReason::ScaledDown };
                let message =
                    format!("scaled {} from {} to {}: {}", job.workload, change.from, change.to, change.why);
                (reason, message, ClusterEvent::Scaled(change.clone()))
            }
            WriteEnd::Failed(failure) => {
                let event = ClusterEvent::ScaleFailed { change: change.clone(), failure: failure.clone() };
                (EventReason::ScaleFailed, failure.clone(), event)
            }
            WriteEnd::Conflict | WriteEnd::NotLeader => return,
        };
        if self.settings.write_status {
            self.put_event(&job.key, reason, message);
        }
        self.report(event);
    }

    /// Lets writes under way end, so that nothing is written after the lease is released, and keeps what was learned.
    async fn finish(&self, driver: &mut Driver) {
        let rest = async {
            while let Some(ended) = driver.jobs.join_next_with_id().await {
                if let Ok((_, JobEnd::Written(job, end))) = &ended {
                    self.tell(job, end);
                }
            }
        };
        let deadline = Instant::now() + LAST_WRITES;
        drop(timeout_at(deadline, rest).await);
        driver.jobs.shutdown().await;
        let last = async {
            while let Some(end) = driver.learned.ended().await {
                self.learned_ended(&mut driver.learned, end);
            }
            driver.learned.begin_last(&self.state(), self.leadership.may_write());
            if let Some(end) = driver.learned.ended().await {
                self.learned_ended(&mut driver.learned, end);
            }
        };
        drop(timeout_at(deadline, last).await);
        driver.learned.shutdown().await;
    }
}

fn under_way(jobs: &HashMap<Id, Job>) -> UnderWay {
    let count = |is: fn(&Job) -> bool| jobs.values().filter(|job| is(job)).count();
    UnderWay {
        writes: count(|job| matches!(job, Job::Write(_))),
        reads: count(|job| matches!(job, Job::Read { .. })),
    }
}
