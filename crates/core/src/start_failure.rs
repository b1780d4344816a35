//! Start failures: their causes, and the circuit breaker that ends all holds when a failure is final.
//!
//! `Attempts` is the circuit breaker. It opens when a failure is final (a missing command, not a slow start), which ends
//! all holds. While it is open, requests fail at once. The next wake half-opens it: requests are held again until that
//! wake has an outcome.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use crate::time::Moment;

/// This many refusals, over at least [`REFUSED_FOR`], are final.
pub const REFUSALS: u32 = 3;
/// See [`REFUSALS`]. Also how long ready pods may refuse all connections before requests fail.
pub const REFUSED_FOR: Duration = Duration::from_secs(5);
/// The longest detail, in characters. Longer ones are truncated.
const LONGEST_DETAIL: usize = 512;

/// Why a start failed: a code and a sentence that any client may see. [`StartFailure::detail`] is for operators only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartFailureCause {
    /// The command or its working directory does not exist, or cannot be executed.
    CannotRun,
    /// The process ended before it was ready, once or twice in a row.
    Crashed,
    /// The process ended before it was ready, three times in a row or more.
    CrashLooping,
    /// The process runs but is not ready yet.
    NotReady,
    /// No workload manages the pods of the service.
    NoScaleTarget,
    /// The workload that the route names does not exist.
    ScaleTargetMissing,
    /// The cluster refused to scale the workload.
    ScaleRefused,
    /// The workload is scaled up, but the cluster refused to create its pods.
    PodsRefused,
    /// The owner of the workload paused it.
    Paused,
    /// The Kubernetes API is not available.
    ClusterUnavailable,
}

/// How long requests wait after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until the deadline of each request: the failure may be temporary.
    Endless,
    /// [`REFUSALS`] times over [`REFUSED_FOR`].
    Refusals,
    /// Not at all: waiting does not help.
    None,
}

impl StartFailureCause {
    /// All causes.
    pub const ALL: [Self; 10] = [
        Self::CannotRun,
        Self::Crashed,
        Self::CrashLooping,
        Self::NotReady,
        Self::NoScaleTarget,
        Self::ScaleTargetMissing,
        Self::ScaleRefused,
        Self::PodsRefused,
        Self::Paused,
        Self::ClusterUnavailable,
    ];

    /// The code of the cause in responses and logs.
    pub const fn code(self) -> &'static str {
        match self {
            Self::CannotRun => "cannot_run",
            Self::Crashed => "crashed",
            Self::CrashLooping => "crash_looping",
            Self::NotReady => "not_ready",
            Self::NoScaleTarget => "no_scale_target",
            Self::ScaleTargetMissing => "scale_target_missing",
            Self::ScaleRefused => "scale_refused",
            Self::PodsRefused => "pods_refused",
            Self::Paused => "paused",
            Self::ClusterUnavailable => "cluster_unavailable",
        }
    }

    /// What happened, as a sentence without names, paths or messages of other systems.
    pub const fn public_message(self) -> &'static str {
        match self {
            Self::CannotRun => "its command cannot be run",
            Self::Crashed => "its process ended before it was ready",
            Self::CrashLooping => "its process ended before it was ready, several times in a row",
            Self::NotReady => "its process runs but is not ready yet",
            Self::NoScaleTarget => "no workload manages its pods",
            Self::ScaleTargetMissing => "its workload does not exist",
            Self::ScaleRefused => "the cluster refused to scale its workload",
            Self::PodsRefused => "the cluster refused to create its pods",
            Self::Paused => "its workload is paused",
            Self::ClusterUnavailable => "the Kubernetes API is not available",
        }
    }

    /// Whether it happened on this machine, so that clients on this machine may see its detail.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::CannotRun | Self::Crashed | Self::CrashLooping | Self::NotReady)
    }

    const fn patience(self) -> Patience {
        match self {
            Self::CannotRun | Self::CrashLooping | Self::NoScaleTarget => Patience::None,
            Self::ScaleTargetMissing | Self::ScaleRefused | Self::PodsRefused | Self::Paused => {
                Patience::Refusals
            }
            Self::Crashed | Self::NotReady | Self::ClusterUnavailable => Patience::Endless,
        }
    }
}

/// A start that failed, or takes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// The public part, safe for anonymous clients.
    pub cause: StartFailureCause,
    detail: Box<str>,
}

impl StartFailure {
    /// `detail` is untrusted: it is truncated, and control characters and line ends are escaped.
    pub fn new(cause: StartFailureCause, detail: &str) -> Self {
        let end = detail.char_indices().nth(LONGEST_DETAIL).map_or(detail.len(), |(at, _)| at);
        Self { cause, detail: one_line(detail.get(..end).unwrap_or_default()).into() }
    }

    /// The full reason, for logs, `rouse status` and route conditions.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// `text` with control characters and line ends escaped, so that it cannot forge log lines or control a terminal.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        // Some programs treat the two separators as line ends; the other characters reorder text on a screen.
        let is_unsafe = c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if is_unsafe {
            // Writing to a String cannot fail.
            write!(line, "{}", c.escape_default()).ok();
        } else {
            line.push(c);
        }
    }
    line
}

/// The circuit breaker of one service: the attempts to start it since a pod was last ready.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// The last failure.
    failure: Option<Arc<StartFailure>>,
    refusals: Option<Refusals>,
    state: State,
}

#[derive(Debug, Clone, Copy)]
struct Refusals {
    first: Moment,
    times: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// No wake was sent yet, or the outcome of the last wake is not known yet.
    #[default]
    Pending,
    /// The last attempt failed, but not for good: requests wait for the next one.
    Failed,
    /// The failure is final: requests fail at once until the next wake.
    Open,
}

impl Attempts {
    /// A wake is sent: half-opens the breaker, since this attempt may succeed.
    pub(crate) fn sent(&mut self) {
        self.state = State::Pending;
    }

    /// The engine makes progress: a pod is requested, scheduled or starting.
    pub(crate) fn progressed(&mut self) {
        *self = Self::default();
    }

    /// An attempt failed.
    pub(crate) fn failed(&mut self, now: Moment, failure: StartFailure) {
        match failure.cause.patience() {
            Patience::Refusals => {
                let refusals = self.refusals.get_or_insert(Refusals { first: now, times: 0 });
                refusals.times = refusals.times.saturating_add(1);
            }
            Patience::Endless | Patience::None => {}
        }
        self.failure = Some(Arc::new(failure));
        self.state = State::Failed;
    }

    /// Opens the breaker if the last failure is final now. `hopeful`: a pod is starting, or takes requests. Returns the failure
    /// once, when it becomes final.
    pub(crate) fn judge(&mut self, now: Moment, hopeful: bool) -> Option<Arc<StartFailure>> {
        let failure = self.failure.clone().filter(|_| self.state == State::Failed && !hopeful)?;
        let is_final = match failure.cause.patience() {
            Patience::None => true,
            Patience::Refusals => self.final_at().is_some_and(|at| at <= now),
            Patience::Endless => false,
        };
        is_final.then(|| {
            self.state = State::Open;
            failure
        })
    }

    /// Why requests fail at once, if they do.
    pub(crate) fn open(&self) -> Option<Arc<StartFailure>> {
        self.failure.clone().filter(|_| self.state == State::Open)
    }

    /// The last failure, final or not.
    pub(crate) fn failure(&self) -> Option<&Arc<StartFailure>> {
        self.failure.as_ref()
    }

    /// When the failure becomes final without another attempt.
    pub(crate) fn due(&self, now: Moment) -> Option<Moment> {
        // Only a time in the future: a failure that was not final then waits for the next attempt.
        let refused = self.failure.as_ref()?.cause.patience() == Patience::Refusals;
        self.final_at().filter(|at| refused && self.state == State::Failed && now < *at)
    }

    fn final_at(&self) -> Option<Moment> {
        let refusals = self.refusals.filter(|refusals| refusals.times >= REFUSALS)?;
        Some(refusals.first + REFUSED_FOR)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failure(cause: StartFailureCause) -> StartFailure {
        StartFailure::new(cause, cause.code())
    }

    /// The second of each report of the engine, and its cause.
    type Story<'a> = &'a [(u64, StartFailureCause)];

    /// The second in which the wait ends in `story`.
    fn ends(story: Story<'_>) -> Option<u64> {
        let mut attempts = Attempts::default();
        for (second, cause) in story {
            let now = Moment::from_secs(*second);
            attempts.sent();
            attempts.failed(now, failure(*cause));
            if attempts.judge(now, false).is_some() {
                return Some(*second);
            }
        }
        None
    }

    #[test]
    fn what_waiting_does_not_mend_ends_the_wait_and_what_may_pass_does_not() {
        use StartFailureCause::{
            CannotRun, ClusterUnavailable, CrashLooping, Crashed, NoScaleTarget, NotReady, ScaleRefused,
        };
        let cases: [(Story<'_>, Option<u64>); 9] = [
            (&[(1, CannotRun)], Some(1)),
            (&[(1, NoScaleTarget)], Some(1)),
            (&[(1, Crashed), (2, Crashed), (3, CrashLooping)], Some(3)),
            (&[(1, NotReady), (100, NotReady), (200, NotReady)], None),
            (&[(1, ClusterUnavailable), (100, ClusterUnavailable), (200, ClusterUnavailable)], None),
            (&[(1, ScaleRefused), (2, ScaleRefused), (3, ScaleRefused)], None),
            (&[(1, ScaleRefused), (6, ScaleRefused)], None),
            (&[(1, ScaleRefused), (2, ScaleRefused), (6, ScaleRefused)], Some(6)),
            (&[(1, ScaleRefused), (2, ClusterUnavailable), (3, ScaleRefused), (6, ScaleRefused)], Some(6)),
        ];
        for (story, expected) in cases {
            assert_eq!(ends(story), expected, "{story:?}");
        }
    }

    #[test]
    fn three_refusals_end_the_wait_five_seconds_after_the_first_without_a_fourth() {
        let mut attempts = Attempts::default();
        for millis in [0, 250, 750] {
            attempts.sent();
            attempts.failed(Moment::from_millis(millis), failure(StartFailureCause::ScaleRefused));
        }
        let due = Moment::from_secs(5);
        assert_eq!(attempts.due(Moment::from_secs(1)), Some(due));
        assert!(attempts.judge(Moment::from_millis(4999), false).is_none());
        assert!(attempts.judge(due, false).is_some());
        assert_eq!(attempts.due(due), None);
    }

    #[test]
    fn the_next_wake_is_waited_for_and_one_more_refusal_is_final_at_once() {
        let mut attempts = Attempts::default();
        for second in [0, 1, 5] {
            attempts.failed(Moment::from_secs(second), failure(StartFailureCause::ScaleRefused));
        }
        assert!(attempts.judge(Moment::from_secs(5), false).is_some() && attempts.open().is_some());
        attempts.sent();
        assert!(attempts.open().is_none() && attempts.failure().is_some());
        assert!(attempts.judge(Moment::from_secs(6), false).is_none(), "the outcome is not known yet");
        attempts.failed(Moment::from_secs(6), failure(StartFailureCause::ScaleRefused));
        assert!(attempts.judge(Moment::from_secs(6), false).is_some());
    }

    #[test]
    fn while_a_pod_is_starting_nothing_is_final() {
        let mut attempts = Attempts::default();
        attempts.failed(Moment::ZERO, failure(StartFailureCause::NoScaleTarget));
        assert!(attempts.judge(Moment::ZERO, true).is_none() && attempts.open().is_none());
    }

    #[test]
    fn a_detail_is_one_bounded_line() {
        let told = StartFailure::new(
            StartFailureCause::ScaleRefused,
            "no\n2026-01-01 forged: line\r\u{1b}[31m\u{2028}ü",
        );
        assert_eq!(told.detail(), "no\\n2026-01-01 forged: line\\r\\u{1b}[31m\\u{2028}ü");
        assert_eq!(
            StartFailure::new(StartFailureCause::Crashed, &"ü".repeat(600)).detail().chars().count(),
            512
        );
    }

    #[test]
    fn every_cause_has_a_code_of_its_own() {
        let codes: std::collections::HashSet<_> = StartFailureCause::ALL.map(StartFailureCause::code).into();
        assert_eq!(codes.len(), StartFailureCause::ALL.len());
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Sent,
        Progressed,
        Failed(usize),
        Judged { hopeful: bool },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Sent),
            1 => Just(Step::Progressed),
            4 => (0..StartFailureCause::ALL.len()).prop_map(Step::Failed),
            4 => any::<bool>().prop_map(|hopeful| Step::Judged { hopeful }),
        ]
    }

    proptest! {
        /// Compares `Attempts` with a naive model that evaluates the rule over the whole history.
        #[test]
        fn the_wait_ends_exactly_when_the_rule_says(steps in prop::collection::vec((0..3000_u64, step()), 0..60)) {
            let mut attempts = Attempts::default();
            let (mut now, mut refused, mut last): (u64, Vec<u64>, Option<StartFailureCause>) = (0, Vec::new(), None);
            let mut ended = false;
            for (pause, step) in steps {
                now += pause;
                let moment = Moment::from_millis(now);
                match step {
                    Step::Sent => {
                        attempts.sent();
                        (last, ended) = (None, false);
                    }
                    Step::Progressed => {
                        attempts.progressed();
                        refused.clear();
                        (last, ended) = (None, false);
                    }
                    Step::Failed(which) => {
                        let cause = StartFailureCause::ALL[which];
                        attempts.failed(moment, failure(cause));
                        if cause.patience() == Patience::Refusals {
                            refused.push(now);
                        }
                        (last, ended) = (Some(cause), false);
                    }
                    Step::Judged { hopeful } => {
                        let is_final = last.is_some_and(|cause| match cause.patience() {
                            Patience::None => true,
                            Patience::Endless => false,
                            Patience::Refusals => refused.len() >= 3 && now >= refused[0] + 5000,
                        });
                        let expected = is_final && !hopeful && !ended;
                        prop_assert_eq!(attempts.judge(moment, hopeful).is_some(), expected);
                        ended |= expected;
                    }
                }
                prop_assert_eq!(attempts.open().is_some(), ended);
            }
        }
    }
}
