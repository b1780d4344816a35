//! `rouse install`: the manifests of `deploy/`, with what an operator decides put in, for `kubectl apply -f -`.

mod args;
mod check;
mod manifests;
mod objects;

use anstyle::{AnsiColor, Style};

pub use args::{HELP, InstallArgs, IpFamily};

use crate::Streams;
use crate::document::emit;
use crate::failure::Failure;

/// Prints the manifests.
pub(crate) fn run(args: &InstallArgs, streams: &mut Streams<'_>) -> Result<(), Failure> {
    let (settings, warnings) = check::settings(args)?;
    let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
    for warning in warnings {
        writeln!(streams.err, "{yellow}warning:{yellow:#} {warning}")?;
    }
    for note in notes(args) {
        writeln!(streams.err, "note: {note}")?;
    }
    for object in objects::all(args, &settings)? {
        writeln!(streams.out, "---")?;
        emit::yaml(streams.out, &object, 0)?;
    }
    Ok(())
}

/// What an operator should know who did not say otherwise.
fn notes(args: &InstallArgs) -> Vec<String> {
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
    notes
}
