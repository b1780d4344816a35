//! Cold-start records: how long each phase took, from the held request to the first byte of its response.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::endpoint::{ServiceId, Source};
use crate::sync::{Mutex, lock};
use crate::time::{Clock, Moment};

/// One cold start, from the first held request to the first byte of its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdStart {
    /// The service.
    pub service: ServiceId,
    /// When the first request was held.
    pub held: Moment,
    /// When the wake was sent to the engine.
    pub wake_sent: Option<Moment>,
    /// When a source first reported a pod.
    pub pod_seen: Option<Moment>,
    /// When a pod could take requests.
    pub pod_ready: Option<Moment>,
    /// The source that first reported that pod ready.
    pub ready_by: Option<Source>,
    /// The pod that the first request went to.
    pub pod: Option<Arc<str>>,
    /// When the connection to that pod was established.
    pub connected: Option<Moment>,
    /// When the response began.
    pub first_byte: Option<Moment>,
    /// When the cold start ended, with any outcome.
    pub ended: Option<Moment>,
    /// How it ended.
    pub outcome: ColdStartOutcome,
}

/// How a cold start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColdStartOutcome {
    /// In progress.
    Waiting,
    /// The first request got the first byte of its response.
    Served,
    /// A pod became ready, but the first request got no response from it.
    Unanswered,
    /// No pod became ready: the start failed for good, or a request reached its deadline.
    Failed,
    /// All clients left before a pod became ready.
    Abandoned,
}

impl ColdStartOutcome {
    /// All outcomes of a finished cold start.
    pub const ENDS: [Self; 4] = [Self::Served, Self::Unanswered, Self::Failed, Self::Abandoned];
}

impl ColdStartOutcome {
    /// The outcome's name in JSON and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            ColdStartOutcome::Waiting => "waiting",
            ColdStartOutcome::Served => "served",
            ColdStartOutcome::Unanswered => "unanswered",
            ColdStartOutcome::Failed => "failed",
            ColdStartOutcome::Abandoned => "abandoned",
        }
    }
}

/// A phase of a cold start, named after the event that ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Until the wake was sent.
    Wake,
    /// Until a source first reported a pod.
    Seen,
    /// Until a pod could take requests.
    Ready,
    /// Until a connection to the pod was established.
    Connect,
    /// Until the response began.
    FirstByte,
}

impl Phase {
    /// The phase's name in metrics and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Wake => "wake",
            Phase::Seen => "seen",
            Phase::Ready => "ready",
            Phase::Connect => "connect",
            Phase::FirstByte => "first_byte",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl ColdStart {
    /// A cold start of `service` that begins with a request held at `held`.
    pub fn new(service: ServiceId, held: Moment) -> Self {
        Self {
            service,
            held,
            wake_sent: None,
            pod_seen: None,
            pod_ready: None,
            ready_by: None,
            pod: None,
            connected: None,
            first_byte: None,
            ended: None,
            outcome: ColdStartOutcome::Waiting,
        }
    }

    /// How long each phase took, in order. A phase that did not happen is left out, and its time counts for the next one.
    pub fn phases(&self) -> impl Iterator<Item = (Phase, Duration)> {
        let stamps = [
            (Phase::Wake, self.wake_sent),
            (Phase::Seen, self.pod_seen),
            (Phase::Ready, self.pod_ready),
            (Phase::Connect, self.connected),
            (Phase::FirstByte, self.first_byte),
        ];
        let mut last = self.held;
        stamps.into_iter().filter_map(move |(phase, stamp)| {
            let stamp = stamp?.max(last);
            let took = stamp.since(last);
            last = stamp;
            Some((phase, took))
        })
    }

    /// The time from the first hold to the end; while in progress, to the end of the last phase.
    pub fn total(&self) -> Duration {
        let phases = self.phases().map(|(_, took)| took).sum();
        self.ended.map_or(phases, |ended| ended.since(self.held))
    }
}

/// The cold start that a request carries with it. Dropping it records the cold start, complete or not.
pub(crate) struct ColdStartRecorder {
    pub(crate) cold_start: Box<ColdStart>,
    log: Arc<ColdStartLog>,
    clock: Arc<dyn Clock>,
}

impl ColdStartRecorder {
    pub(crate) fn new(cold_start: Box<ColdStart>, log: Arc<ColdStartLog>, clock: Arc<dyn Clock>) -> Self {
        Self { cold_start, log, clock }
    }

    /// The response began, which ends the cold start.
    pub(crate) fn served(mut self, now: Moment) {
        (self.cold_start.first_byte, self.cold_start.ended) = (Some(now), Some(now));
        self.cold_start.outcome = ColdStartOutcome::Served;
    }
}

impl fmt::Debug for ColdStartRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Anatomy").field(&self.cold_start).finish()
    }
}

impl Drop for ColdStartRecorder {
    fn drop(&mut self) {
        let cold_start = &mut self.cold_start;
        cold_start.ended.get_or_insert_with(|| self.clock.now());
        cold_start.outcome = match cold_start.outcome {
            ColdStartOutcome::Waiting | ColdStartOutcome::Failed if cold_start.pod_ready.is_some() => {
                ColdStartOutcome::Unanswered
            }
            ColdStartOutcome::Waiting => ColdStartOutcome::Abandoned,
            outcome => outcome,
        };
        self.log.record((**cold_start).clone());
    }
}

/// The most recent cold starts, newest first.
#[derive(Debug)]
pub struct ColdStartLog {
    kept: Mutex<Kept>,
    bound: usize,
}

#[derive(Debug, Default)]
struct Kept {
    newest_first: VecDeque<ColdStart>,
    /// How many were recorded so far.
    total: u64,
    /// The tasks that wait for the next one.
    waiting: Vec<Waker>,
}

/// The read position of a follower of [`ColdStartLog`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Read(u64);

impl ColdStartLog {
    /// Keeps the last `bound` cold starts.
    pub fn new(bound: usize) -> Self {
        Self { kept: Mutex::default(), bound }
    }

    /// Adds a cold start, and drops the oldest one beyond the limit.
    pub(crate) fn record(&self, cold_start: ColdStart) {
        let mut kept = lock(&self.kept);
        kept.newest_first.push_front(cold_start);
        kept.newest_first.truncate(self.bound);
        kept.total += 1;
        let waiting = std::mem::take(&mut kept.waiting);
        drop(kept);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits for cold starts after `read` and returns them, oldest first. A follower that falls more than `bound` cold starts
    /// behind misses the oldest.
    pub async fn after(&self, read: &mut Read) -> Vec<ColdStart> {
        poll_fn(|context| {
            let mut kept = lock(&self.kept);
            if kept.total == read.0 {
                // Register the waker of a task once: otherwise repeated polls would make the list grow without limit.
                if !kept.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    kept.waiting.push(context.waker().clone());
                }
                return Poll::Pending;
            }
            let new = usize::try_from(kept.total - read.0).unwrap_or(usize::MAX);
            read.0 = kept.total;
            let mut new: Vec<ColdStart> = kept.newest_first.iter().take(new).cloned().collect();
            new.reverse();
            Poll::Ready(new)
        })
        .await
    }

    /// The newest `limit` cold starts, of one service or of all.
    pub fn newest(&self, service: Option<&ServiceId>, limit: usize) -> Vec<ColdStart> {
        let kept = lock(&self.kept);
        let wanted =
            kept.newest_first.iter().filter(|cold| service.is_none_or(|service| cold.service == *service));
        wanted.take(limit).cloned().collect()
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    fn cold_start(name: &str) -> ColdStart {
        ColdStart::new(format!("shop/{name}").parse().unwrap(), Moment::from_millis(1))
    }

    #[test]
    fn the_phases_add_up_to_the_whole() {
        let mut cold = cold_start("cart");
        cold.wake_sent = Some(Moment::from_millis(2));
        cold.pod_seen = Some(Moment::from_millis(10));
        cold.pod_ready = Some(Moment::from_millis(50));
        cold.connected = Some(Moment::from_millis(51));
        cold.first_byte = Some(Moment::from_millis(60));
        let took: Vec<_> = cold.phases().map(|(phase, took)| (phase.as_str(), took.as_millis())).collect();
        assert_eq!(took, [("wake", 1), ("seen", 8), ("ready", 40), ("connect", 1), ("first_byte", 9)]);
        assert_eq!(cold.total(), Duration::from_millis(59));
    }

    #[test]
    fn a_phase_that_did_not_happen_belongs_to_the_next() {
        let mut cold = cold_start("cart");
        cold.pod_ready = Some(Moment::from_millis(11));
        assert_eq!(cold.phases().collect::<Vec<_>>(), [(Phase::Ready, Duration::from_millis(10))]);
    }

    #[tokio::test]
    async fn a_follower_reads_every_cold_start_once_and_in_order() {
        let (log, mut read) = (ColdStartLog::new(10), Read::default());
        let names =
            |new: Vec<ColdStart>| new.iter().map(|cold| cold.service.name().to_owned()).collect::<Vec<_>>();
        log.record(cold_start("a"));
        log.record(cold_start("b"));
        assert_eq!(names(log.after(&mut read).await), ["a", "b"]);
        let (new, ()) = tokio::join!(log.after(&mut read), async { log.record(cold_start("c")) });
        assert_eq!(names(new), ["c"]);
    }

    #[test]
    fn only_the_newest_are_kept() {
        let log = ColdStartLog::new(2);
        for name in ["a", "b", "c"] {
            log.record(cold_start(name));
        }
        let names = |service: Option<&ServiceId>| -> Vec<String> {
            log.newest(service, 10).iter().map(|cold| cold.service.name().to_owned()).collect()
        };
        assert_eq!(names(None), ["c", "b"]);
        assert_eq!(names(Some(&"shop/b".parse().unwrap())), ["b"]);
    }
}
