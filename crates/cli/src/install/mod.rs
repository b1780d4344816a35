//! `rouse install`: the manifests of `deploy/`, with what an operator decides put in, for `kubectl apply --server-side -f -`.

mod args;
mod check;
mod leave;
mod manifests;
mod objects;

use anstyle::{AnsiColor, Style};

pub use args::{HELP, InstallArgs, IpFamily, Replicas};

use crate::Streams;
use crate::config::Span;
use crate::document::emit;
use crate::failure::Failure;
use crate::gateway::settings::Settings;

/// Prints the manifests.
pub(crate) fn run(args: &InstallArgs, streams: &mut Streams<'_>) -> Result<(), Failure> {
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

/// What an operator should know who did not say otherwise.
fn notes(args: &InstallArgs, settings: &Settings) -> Vec<String> {
    let mut notes = Vec::new();
    if args.image.starts_with("localhost/") {
        notes.push(format!("the image {} must be on the nodes already; --image names another", args.image));
    }
    if args.crds.is_default() {
        notes.push(
            "the definitions of InterceptorRoute and HTTPScaledObject are included; --no-crds leaves them out, for \
             clusters with KEDA HTTP add-on"
                .to_owned(),
        );
    }
    if leave::is_without_end(args, settings) {
        notes.push(format!(
            "KEDA_HTTP_DRAIN_TIMEOUT=0 is for as long as the pod may take: terminationGracePeriodSeconds stays {}, after \
             which requests under way are cut off; ROUSE_DRAIN_TIMEOUT=2m gives them two minutes",
            leave::seconds(args, settings)
        ));
    } else if settings.drain_timeout > leave::LONG {
        notes.push(format!(
            "{}: requests under way get {} to finish: the drain of a node may take that long",
            settings.origin("drain-timeout").map_or_else(|| "drain-timeout".to_owned(), ToString::to_string),
            Span::from(settings.drain_timeout),
        ));
    }
    notes
}
