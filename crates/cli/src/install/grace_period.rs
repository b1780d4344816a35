//! Computes `terminationGracePeriodSeconds`, the time that a gateway has to drain before the kubelet kills it.

use std::time::Duration;

use super::args::InstallArgs;
use rouse_config::settings::Values;
use rouse_daemon::gateway::drain_has_no_end;
use rouse_daemon::gateway::settings::{DRAIN_TIMEOUT, SHUTDOWN_DELAY};

/// How long the process may take to end after its drain.
const MARGIN: Duration = Duration::from_secs(10);
/// The drain time for a drain timeout without limit: the same as the default.
const UNTIL_KILLED: Duration = Duration::from_secs(30);
/// A longer drain gets a note: the drain of a node waits for it.
pub(super) const LONG: Duration = Duration::from_hours(1);

/// True if KEDA's variable sets a drain without limit. Its translation is a month, which must not become the grace period.
pub(super) fn is_without_end(args: &InstallArgs, settings: &Values) -> bool {
    let origin = settings.origin(&DRAIN_TIMEOUT).to_string();
    let said = args.env.iter().find(|(name, _)| *name == origin);
    said.is_some_and(|(name, value)| drain_has_no_end(name, value))
}

/// `terminationGracePeriodSeconds`.
pub(super) fn seconds(args: &InstallArgs, settings: &Values) -> u64 {
    let drain = if is_without_end(args, settings) { UNTIL_KILLED } else { settings.get(&DRAIN_TIMEOUT) };
    let leaving = settings.get(&SHUTDOWN_DELAY).saturating_add(drain).saturating_add(MARGIN);
    leaving.as_secs() + u64::from(leaving.subsec_nanos() > 0)
}
