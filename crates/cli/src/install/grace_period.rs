//! `terminationGracePeriodSeconds`: how long the kubelet lets a gateway drain before it kills it.

use std::time::Duration;

use super::args::InstallArgs;
use rouse_config::settings::Values;
use rouse_daemon::gateway::drain_has_no_end;
use rouse_daemon::gateway::settings::{DRAIN_TIMEOUT, SHUTDOWN_DELAY};

/// How long the process may take to end after its drain.
const MARGIN: Duration = Duration::from_secs(10);
/// The drain of a gateway that is to drain until it is killed: as long as by default.
const UNTIL_KILLED: Duration = Duration::from_secs(30);
/// A longer drain is worth a word: nodes wait for it.
pub(super) const LONG: Duration = Duration::from_hours(1);

/// Whether KEDA's variable says that requests may take as long as the pod may, which must not make that a month.
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
