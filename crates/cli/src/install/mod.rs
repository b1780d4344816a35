//! `rouse install`: prints the manifests of `deploy/` with the values of the operator, for `kubectl apply --server-side -f -`.

mod args;
mod check;
mod grace_period;
mod manifests;
mod objects;
mod registration;

use anstyle::{AnsiColor, Style};

pub use args::{HELP, InstallArgs, Replicas};

use crate::CommandError;
use crate::Streams;
use rouse_config::document::emit;
use rouse_config::duration::HumanDuration;
use rouse_config::settings::Values;
use rouse_daemon::gateway::settings::DRAIN_TIMEOUT;

/// Prints the manifests.
pub(crate) fn run(args: &InstallArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let (settings, warnings) = check::settings(args)?;
    let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
    for warning in warnings {
        writeln!(streams.err, "{yellow}warning:{yellow:#} {warning}")?;
    }
    for note in notes(args, &settings) {
        writeln!(streams.err, "note: {note}")?;
    }
    for object in objects::all(args, &settings)? {
        writeln!(streams.out, "---")?;
        emit::yaml(streams.out, &object, 0)?;
    }
    Ok(())
}

/// Notes about defaults and long drains.
fn notes(args: &InstallArgs, settings: &Values) -> Vec<String> {
    let mut notes = Vec::new();
    if args.image.starts_with("localhost/") {
        notes.push(format!(
            "the image {} must already be on the nodes; use --image for another one",
            args.image
        ));
    }
    if args.crds.is_default() {
        notes.push(
            "the CRDs of InterceptorRoute and HTTPScaledObject are included; use --no-crds in clusters with KEDA HTTP add-on"
                .to_owned(),
        );
    }
    if grace_period::is_without_end(args, settings) {
        notes.push(format!(
            "KEDA_HTTP_DRAIN_TIMEOUT=0 means no limit: terminationGracePeriodSeconds stays {}, after \
             which requests under way are cut off; ROUSE_DRAIN_TIMEOUT=2m gives them two minutes",
            grace_period::seconds(args, settings)
        ));
    } else if settings.get(&DRAIN_TIMEOUT) > grace_period::LONG {
        notes.push(format!(
            "{}: requests under way get {} to finish: the drain of a node may take that long",
            settings.origin(&DRAIN_TIMEOUT),
            HumanDuration::from(settings.get(&DRAIN_TIMEOUT)),
        ));
    }
    notes
}
