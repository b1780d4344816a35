//! `rouse inject`: adds the sidecar to workloads and points their Services at it, or removes it. It changes files, not the
//! cluster.

mod args;
mod document_tree;
mod editor;
mod patch;
mod plan;
mod record;
mod selection;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rouse_config::document::{DocumentError, DocumentNode, Value, emit};
use rouse_daemon::sidecar::settings::{DRAIN_SECRET_HEADER, is_drain_secret};
use rouse_net::random;

pub use args::{HELP, InjectArgs, ObjectFormat};

use crate::CommandError;
use crate::Streams;
use crate::input::{Head, InputSource, printable};
use record::{ObjectRole, restore};
use selection::{Identity, Pair, refused, title};

/// Prints the changed objects.
pub(crate) fn run(args: &InjectArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let mut notes: Vec<String> = Vec::new();
    let source = InputSource::load(&args.file, streams.stdin, &mut |note| notes.push(note.to_owned()))?;
    let mut objects = read(&source)?;
    let pairs = selection::pairs(&objects, args)?;
    let identities: Vec<Identity> = objects.iter().map(Identity::of).collect();
    let secrets = secrets(&objects, &pairs);
    take_out(&mut objects, &pairs)?;
    if args.remove {
        if pairs.is_empty() {
            notes.push(
                "nothing to remove: no workload of the file has the annotation of rouse inject".to_owned(),
            );
        }
    } else {
        notes.extend(add(&mut objects, &pairs, &secrets, args)?);
    }
    identities.iter().zip(&objects).try_for_each(|(identity, object)| identity.check(object))?;
    for note in notes {
        writeln!(streams.err, "note: {}", printable(&note))?;
    }
    let same = if source.is_json() { ObjectFormat::Json } else { ObjectFormat::Yaml };
    print(&objects, args.output.unwrap_or(same), streams)
}

/// All objects of the file. An item of a List gets the kind and version that the List says.
fn read(source: &InputSource) -> Result<Vec<DocumentNode>, CommandError> {
    let mut objects = Vec::new();
    source.walk(
        "kubectl get deployment/cart service/cart -o yaml",
        &mut |mut node, list: Option<&Head>| {
            if !matches!(node.value, Value::Map(_)) {
                let problem =
                    format!("expected a Kubernetes object with apiVersion and kind, found {}", node.value);
                return Err(DocumentError::new(node.mark, problem));
            }
            if let Some(list) = list {
                for (key, value) in [("kind", &list.kind), ("apiVersion", &list.api_version)] {
                    if node.get(key).is_none() {
                        let value = serde_json::Value::from(value.as_str());
                        document_tree::put(&mut node, key, (&value).into(), Some(0));
                    }
                }
            }
            objects.push(node);
            Ok(())
        },
    )?;
    Ok(objects)
}

/// The secrets of the workloads that have the sidecar: a second run keeps them.
fn secrets(objects: &[DocumentNode], pairs: &[Pair]) -> BTreeMap<usize, String> {
    let known = |pair: &Pair| {
        // One that the sidecar would not accept is replaced.
        let secret = patch::drain_secret(objects.get(pair.workload)?).filter(|it| is_drain_secret(it))?;
        Some((pair.workload, secret))
    };
    pairs.iter().filter_map(known).collect()
}

/// Restores the workloads and their Services.
fn take_out(objects: &mut [DocumentNode], pairs: &[Pair]) -> Result<(), CommandError> {
    let both = |pair: &Pair| [(pair.workload, ObjectRole::Workload), (pair.service, ObjectRole::Service)];
    for (number, role) in pairs.iter().flat_map(both) {
        let Some(object) = objects.get_mut(number) else { continue };
        restore(object, role).map_err(|error| refused(object, error.to_string()))?;
    }
    Ok(())
}

/// Adds the sidecar. Returns notes for the operator.
fn add(
    objects: &mut [DocumentNode],
    pairs: &[Pair],
    secrets: &BTreeMap<usize, String>,
    args: &InjectArgs,
) -> Result<Vec<String>, CommandError> {
    let mut notes = Vec::new();
    let mut plans = Vec::new();
    for pair in pairs {
        let (Some(workload), Some(service)) = (objects.get(pair.workload), objects.get(pair.service)) else {
            continue;
        };
        let plan = plan::plan(workload, service, args)?;
        notes.extend(notes_about(&plan, workload, args));
        let others = selection::bypasses(objects, *pair);
        if !others.is_empty() {
            notes.push(format!("requests to {} do not go through the sidecar", others.join(", ")));
        }
        plans.push((*pair, plan));
    }
    let failed =
        |error: serde_json::Error| CommandError::Failed(format!("cannot write the annotation: {error}"));
    for (pair, plan) in plans {
        if let Some(workload) = objects.get_mut(pair.workload) {
            let secret = match args.drain_secret.as_ref().or(secrets.get(&pair.workload)) {
                Some(secret) => secret.clone(),
                None => new_secret()?,
            };
            patch::workload(workload, &plan, &secret, args).map_err(failed)?;
        }
        // Several workloads may have one Service.
        if let Some(service) =
            objects.get_mut(pair.service).filter(|service| !selection::is_injected(service))
        {
            patch::service(service, &plan, args).map_err(failed)?;
        }
    }
    Ok(notes)
}

fn notes_about(plan: &plan::SidecarPlan, workload: &DocumentNode, args: &InjectArgs) -> Vec<String> {
    let mut notes = Vec::new();
    let title = title(workload);
    if plan.has_pre_stop {
        notes.push(format!(
            "{title}: container {} keeps its own preStop hook, so the app may stop before the pod has drained; let the hook \
             GET http://{}:{}/wait-for-drain with the header {}, whose value is that of the variable {} of container {}",
            plan.container,
            patch::loopback(args),
            args.admin_port,
            DRAIN_SECRET_HEADER,
            patch::DRAIN_VARIABLE,
            patch::SIDECAR,
        ));
    }
    if !plan.other_probes.is_empty() {
        notes.push(format!(
            "{title}: the sidecar does not run the readinessProbe of {}; its own probe ({}) decides when the pod gets requests",
            plan.other_probes.join(", "),
            plan.probe
        ));
    }
    let left: Vec<&str> =
        plan.ports.iter().filter(|port| !port.via_sidecar).map(|port| &*port.name).collect();
    if !left.is_empty() {
        notes.push(format!(
            "Service {}: its ports {} still bypass the sidecar",
            plan.service,
            left.join(", ")
        ));
    }
    notes
}

fn new_secret() -> Result<String, CommandError> {
    let secret = random::secret().map_err(|error| CommandError::Failed(error.to_string()))?;
    Ok(secret.iter().take(16).fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        write!(text, "{byte:02x}").ok();
        text
    }))
}

fn print(
    objects: &[DocumentNode],
    format: ObjectFormat,
    streams: &mut Streams<'_>,
) -> Result<(), CommandError> {
    for (number, object) in objects.iter().enumerate() {
        match format {
            ObjectFormat::Yaml => {
                if number > 0 {
                    writeln!(streams.out, "---")?;
                }
                emit::node(streams.out, object, 0)?;
            }
            ObjectFormat::Json => {
                serde_json::to_writer_pretty(&mut *streams.out, object).map_err(std::io::Error::from)?;
                writeln!(streams.out)?;
            }
        }
    }
    Ok(())
}
