//! The autoscaler of one target: load reports → desired pods. `rouse up` and `rouse controller` both use it.
//!
//! There is one [`Autoscaler`] per app of `rouse up`, and per workload on Kubernetes, where the load of several services may be
//! summed ([`Fleet`]). Its driver passes in the list of reporters ([`Autoscaler::list`]), their reports
//! ([`Autoscaler::report`]), wall time if there are schedules ([`Autoscaler::set_wall_clock`]) and the observed pods
//! ([`Autoscaler::decide`]). It does not assume that a decision is carried out: a wake has happened when pods are observed. The
//! driver calls `decide` after each report, after each change of the pods, and at [`Autoscaler::next_due`].
//!
//! The rules; later ones win:
//! 1. The number of pods is the average load over the stable window divided by the target, rounded up; in panic mode, the
//!    larger of that and the same for the panic window. A surge (the load of the panic window reaches the panic threshold,
//!    by default 200 % of the ready pods' capacity) starts panic mode. A stable window without a surge, or idleness, ends it.
//! 2. The rates apply per step of [`STEP`], however many decisions it has. A step scales up to at most the ready pods at its
//!    start (at least one) × the up rate, and down to at least the most pods seen in it ÷ the down rate, rounded down.
//! 3. Panic mode removes no pod.
//! 4. At least one pod (or `min`, or what the schedule says now), at most `max`. To zero only without load, and then at once:
//!    after `idle-after`, or when the learned idle policy says so.
//! 5. Pods are removed only when all load is known: at least one reporter is listed, every listed reporter has a fresh
//!    report, no Envoy that may send it requests is silent ([`Autoscaler::set_silent_envoy`]), and a service that existed before the
//!    autoscaler has been observed for a stable window. This applies to `max` too.
//! 6. Requests in flight keep the pods that they need at the target (else the limit, else 100 each), up to `max`. They add no
//!    pods: single samples would make the number of pods flap.
//! 7. A pin overrides all of the above.
//!
//! At zero, a wake starts one pod (or `min`), or as many as the load needs if that is more: a hold, or a request since zero was
//! observed. The schedule and a learned idle policy start pods too. After a wake, the service does not go back to zero before
//! it was ready for `idle-after` without a break, or [`WAKE_TIMEOUT`] passed since the wake. With a learned policy it may go
//! sooner once it was ready while there was a request, since the request was served. A pod that was started ahead of a
//! request that does not come goes at the end of its window.

mod autoscaler;
mod decision;
mod envoys;
mod fleet;
mod idle;
mod load_table;
mod policy;
mod report;
mod request_rates;
mod schedule;
mod window;
mod zero_preparation;

use std::time::Duration;

pub use autoscaler::Autoscaler;
pub use decision::{Decision, ObservedTarget, Owner, ScaleReason};
pub use envoys::{
    ENVOY_MEMORY, EnvoyId, EnvoyLoad, EnvoyServices, EnvoyState, EnvoyTable, EnvoyUpdate, MAX_ENVOY_NAME,
    MAX_ENVOY_SERVICES, MAX_ENVOYS, SilentEnvoys,
};
pub use fleet::Fleet;
pub use idle::{
    BadState, COLD_START_COSTS, DEFAULT_COLD_START_COST, IdleExplanation, IdlePlan, IdlePolicy, SHORTEST_GAP,
    STATE_BYTES, WarmWindow,
};
pub use load_table::{LoadChange, LoadChanges, LoadTable, LoadUpdate, MAX_KEYS};
pub use policy::{BadPolicy, BadSetting, ScalePolicy, ScaleSettings};
pub use report::{
    CurrentLoad, LoadReport, MAX_REPORTERS, REPORT_PERIOD, REPORT_TTL, Reporter, TooManyReporters,
};
pub use request_rates::RequestRates;
pub use schedule::{BadSchedule, Floor, MAX_PARTS, Schedule};
pub use zero_preparation::{
    PARKED_FOR, PREPARE_DEADLINE, PREPARE_SETTLE, ParkedServices, ZeroPreparation, ZeroProgress,
};

/// The length of a step, over which the rates apply (as in Knative).
pub const STEP: Duration = Duration::from_secs(2);
/// How long a woken service may take to become ready before it can be scaled to zero again.
pub const WAKE_TIMEOUT: Duration = Duration::from_mins(10);
