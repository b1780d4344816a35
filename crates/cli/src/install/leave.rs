//! How long the kubelet lets a gateway leave before it kills it.

use std::time::Duration;

use super::args::InstallArgs;
use crate::gateway::drain_has_no_end;
use crate::gateway::settings::Settings;

/// How long the process may take to end after its drain.
const MARGIN: Duration = Duration::from_secs(10);
/// The drain of a gateway that is to drain until it is killed: as long as one that was told nothing.
const UNTIL_KILLED: Duration = Duration::from_secs(30);
/// A longer drain is worth a word: nodes wait for it.
pub(super) const LONG: Duration = Duration::from_hours(1);

/// Whether KEDA's variable says that requests may take as long as the pod may, which must not make that a month.
pub(super) fn is_without_end(args: &InstallArgs, settings: &Settings) -> bool {
    settings.origin("drain-timeout").is_some_and(|origin| {
        let said = args.env.iter().find(|(name, _)| *name == origin.to_string());
        said.is_some_and(|(name, value)| drain_has_no_end(name, value))
    })
}

/// `terminationGracePeriodSeconds`.
pub(super) fn seconds(args: &InstallArgs, settings: &Settings) -> u64 {
    let drain = if is_without_end(args, settings) { UNTIL_KILLED } else { settings.drain_timeout };
    let leaving = settings.shutdown_delay.saturating_add(drain).saturating_add(MARGIN);
    leaving.as_secs() + u64::from(leaving.subsec_nanos() > 0)
}
