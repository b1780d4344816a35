//! `rouse install`: prints the manifests of `deploy/` with the values of the operator, for `kubectl apply --server-side -f -`.

mod args;
mod controller;
mod environment;
mod grace_period;
mod keys;
mod manifests;
mod objects;
mod registration;
mod xds;

use anstyle::{AnsiColor, Style};

pub use args::{ControllerFlags, HELP, InstallArgs, Replicas, XdsFlags};

use crate::CommandError;
use crate::Streams;
use rouse_config::document::emit;
use rouse_config::duration::HumanDuration;
use rouse_config::settings::Values;
use rouse_daemon::gateway::settings::DRAIN_TIMEOUT;
use rouse_daemon::process::time_of_day;

/// Prints the manifests.
pub(crate) fn run(args: &InstallArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let args = &keys::with_secrets(args);
    let (settings, warnings) = environment::settings(args)?;
    let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
    for warning in warnings {
        writeln!(streams.err, "{yellow}warning:{yellow:#} {warning}")?;
    }
    if args.generate_keys {
        writeln!(streams.err, "{yellow}warning:{yellow:#} {}", keys_warning(args))?;
    }
    for note in notes(args, &settings) {
        writeln!(streams.err, "note: {note}")?;
    }
    for object in objects::all(args, &settings, time_of_day())? {
        writeln!(streams.out, "---")?;
        emit::yaml(streams.out, &object, 0)?;
    }
    Ok(())
}

/// The warning about keys in the output, with the way to renew the certificate.
fn keys_warning(args: &InstallArgs) -> String {
    let (namespace, ca) = (&args.namespace, keys::CA);
    let secrets = [
        ("--register-secret", &args.register_secret),
        ("--controller-secret", &args.controller.controller_secret),
        ("--xds --xds-secret", &args.xds.xds_secret),
    ];
    let flags: Vec<String> =
        secrets.iter().filter_map(|(flag, secret)| Some(format!("{flag} {}", secret.as_ref()?))).collect();
    let flags = flags.join(" ");
    let made = if args.ca_key.is_some() {
        "they are signed by the CA of --ca-cert; apply the output".to_owned()
    } else {
        format!(
            "apply the output once, and use {flags} from then on: each run makes a new CA, which sidecars do not \
             trust. Before the certificates expire (1 year), renew them with the CA in Secret {namespace}/{ca}, by --ca-cert and \
             --ca-key (docs/inject.md)"
        )
    };
    format!(
        "the output contains private keys: pipe it to kubectl, and keep it out of files, logs and repositories; {made}"
    )
}

/// Notes about defaults, a controller without a certificate, and long drains.
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
    notes.extend(controller::note(args));
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
