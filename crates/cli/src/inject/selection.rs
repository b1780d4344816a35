//! Selects the workloads of the file that get the sidecar, each with the Service that its pods register for.

use rouse_config::document::{DocumentNode, MapEntry, Value};
use rouse_core::slices::{self, Labels};
use rouse_kube::objects::slices::{SELECTOR_ANNOTATION, parse_selector};

use super::args::InjectArgs;
use super::document_tree::{at, members, text};
use super::record::INJECTED;
use crate::CommandError;
use crate::input::printable;

/// The kinds of workloads that may have the sidecar.
const WORKLOADS: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

/// A workload and the Service that its pods register for, by their numbers in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) workload: usize,
    pub(super) service: usize,
}

/// An error about an object, which names it.
pub(super) fn refused(object: &DocumentNode, what: impl AsRef<str>) -> CommandError {
    CommandError::Input(printable(&format!("{}: {}", title(object), what.as_ref())))
}

/// Kind, namespace and name: `Deployment shop/cart`.
pub(super) fn title(object: &DocumentNode) -> String {
    let kind = text(object, &["kind"]).unwrap_or_default();
    match namespace(object) {
        "" => format!("{kind} {}", name(object)),
        namespace => format!("{kind} {namespace}/{}", name(object)),
    }
}

pub(super) fn name(object: &DocumentNode) -> &str {
    text(object, &["metadata", "name"]).unwrap_or_default()
}

fn namespace(object: &DocumentNode) -> &str {
    text(object, &["metadata", "namespace"]).unwrap_or_default()
}

fn is(object: &DocumentNode, api_version: &str, kinds: &[&str]) -> bool {
    text(object, &["apiVersion"]) == Some(api_version)
        && text(object, &["kind"]).is_some_and(|kind| kinds.contains(&kind))
}

/// What identifies an object: its apiVersion, kind, name and namespace, as they are in the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Identity {
    /// The fields by their paths. None for one that is absent.
    fields: [(&'static str, Option<Value>); 4],
    title: String,
}

impl Identity {
    /// The identity of `object`.
    pub(super) fn of(object: &DocumentNode) -> Self {
        let value = |keys: &[&str]| at(object, keys).map(|node| node.value.clone());
        let fields = [
            ("apiVersion", value(&["apiVersion"])),
            ("kind", value(&["kind"])),
            ("metadata.name", value(&["metadata", "name"])),
            ("metadata.namespace", value(&["metadata", "namespace"])),
        ];
        Self { fields, title: title(object) }
    }

    /// Refuses an object with another identity: `kubectl apply` would change an object that the operator did not choose.
    pub(super) fn check(&self, object: &DocumentNode) -> Result<(), CommandError> {
        let after = Self::of(object);
        let mut fields = self.fields.iter().zip(&after.fields);
        match fields.find(|(before, after)| before != after) {
            None => Ok(()),
            Some(((field, _), _)) => Err(CommandError::Input(printable(&format!(
                "{}: its {field} would change, so it would be another object: remove the annotation {INJECTED} and undo the sidecar by hand",
                self.title
            )))),
        }
    }
}

/// True if `rouse inject` has changed the object.
pub(super) fn is_injected(object: &DocumentNode) -> bool {
    at(object, &["metadata", "annotations", INJECTED]).is_some()
}

/// The workloads that the operator wants to change, each with its Service.
pub(super) fn pairs(objects: &[DocumentNode], args: &InjectArgs) -> Result<Vec<Pair>, CommandError> {
    let workloads: Vec<usize> = (0..objects.len())
        .filter(|n| objects.get(*n).is_some_and(|it| is(it, "apps/v1", &WORKLOADS)))
        .collect();
    let wanted = |object: &DocumentNode| {
        let named = args.workload.is_empty() || args.workload.iter().any(|wanted| wanted == name(object));
        // Without the annotation there is nothing to remove.
        named && (!args.remove || is_injected(object))
    };
    if let Some(missing) = args
        .workload
        .iter()
        .find(|wanted| !workloads.iter().any(|n| objects.get(*n).is_some_and(|it| name(it) == *wanted)))
    {
        let kinds = WORKLOADS.join(", ");
        return Err(CommandError::Input(format!(
            "--workload {missing}: the file has no {kinds} of this name"
        )));
    }
    let chosen = workloads.into_iter().filter_map(|n| Some((n, objects.get(n)?)));
    let pairs: Result<Vec<Pair>, _> = chosen
        .filter(|(_, object)| wanted(object))
        .map(|(workload, object)| service_of(objects, object, args).map(|service| Pair { workload, service }))
        .collect();
    let pairs = pairs?;
    if pairs.is_empty() && !args.remove {
        return Err(CommandError::Input(
            "no workload is in the file: expected a Deployment, StatefulSet or DaemonSet (apps/v1) and its Service".to_owned(),
        ));
    }
    reject_orphan_services(objects, &pairs, args)?;
    Ok(pairs)
}

/// Refuses an injected Service without its workload: its target port would lead nowhere.
fn reject_orphan_services(
    objects: &[DocumentNode],
    pairs: &[Pair],
    args: &InjectArgs,
) -> Result<(), CommandError> {
    let alone = objects.iter().enumerate().find(|(n, object)| {
        is(object, "v1", &["Service"]) && is_injected(object) && !pairs.iter().any(|pair| pair.service == *n)
    });
    match alone {
        Some((_, service)) if args.workload.is_empty() => Err(refused(
            service,
            "its target port is that of the sidecar, and no injected workload that it selects is in the file: add the workload",
        )),
        _ => Ok(()),
    }
}

/// The number of the Service that the pods of `workload` register for.
fn service_of(
    objects: &[DocumentNode],
    workload: &DocumentNode,
    args: &InjectArgs,
) -> Result<usize, CommandError> {
    let selecting: Vec<(usize, &DocumentNode)> =
        objects.iter().enumerate().filter(|(_, object)| selects(object, workload)).collect();
    // On removal, the annotation says which one it was.
    let meant = selecting.iter().filter(|(_, service)| {
        let named = args.service.is_empty() || args.service.iter().any(|wanted| wanted == name(service));
        named && (!args.remove || is_injected(service))
    });
    let meant: Vec<&(usize, &DocumentNode)> = meant.collect();
    match (&*meant, &*selecting) {
        ([(service, _)], _) => Ok(*service),
        ([], []) => {
            let namespace = namespace(workload);
            let labels = pod_labels(workload);
            let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let labels = labels.join(",");
            let place =
                if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
            Err(refused(
                workload,
                format!(
                    "the Service that selects its pods is not in the file: add the Service{place} whose selector matches the \
                     labels {labels}, because its target port changes too"
                ),
            ))
        }
        ([], others) => {
            let why = if args.remove { "was changed by rouse inject" } else { "is named by --service" };
            Err(refused(workload, format!("none of its Services ({}) {why}", names(others.iter()))))
        }
        (several, _) => Err(refused(
            workload,
            format!(
                "several Services select its pods ({}), and a pod registers for one: choose it with --service NAME",
                names(several.iter().copied())
            ),
        )),
    }
}

fn names<'n>(services: impl Iterator<Item = &'n (usize, &'n DocumentNode)>) -> String {
    services.map(|(_, service)| name(service)).collect::<Vec<_>>().join(", ")
}

/// The labels of the workload's pods.
fn pod_labels(workload: &DocumentNode) -> Labels {
    texts(workload, &["spec", "template", "metadata", "labels"]).unwrap_or_default()
}

/// The members of an object whose values are texts. None if another value is among them.
fn texts(node: &DocumentNode, keys: &[&str]) -> Option<Labels> {
    let text = |entry: &MapEntry| Some((entry.key.to_string(), entry.value.as_str()?.to_owned()));
    members(node, keys).iter().map(text).collect()
}

/// The other Services that select the pods of a pair's workload: their requests bypass the sidecar.
pub(super) fn bypasses(objects: &[DocumentNode], pair: Pair) -> Vec<String> {
    let Some(workload) = objects.get(pair.workload) else { return Vec::new() };
    let others =
        objects.iter().enumerate().filter(|(n, object)| *n != pair.service && selects(object, workload));
    others.map(|(_, service)| title(service)).collect()
}

/// Whether `service` is a Service whose selector, or the annotation in place of one, matches the labels of the workload's pods.
/// A selector that cannot be read selects nothing, as in the gateway.
fn selects(service: &DocumentNode, workload: &DocumentNode) -> bool {
    if !is(service, "v1", &["Service"])
        || namespace(service) != namespace(workload)
        || text(service, &["spec", "type"]) == Some("ExternalName")
    {
        return false;
    }
    let selector = if members(service, &["spec", "selector"]).is_empty() {
        let annotation = text(service, &["metadata", "annotations", SELECTOR_ANNOTATION]);
        annotation.and_then(|annotation| parse_selector(annotation).ok())
    } else {
        texts(service, &["spec", "selector"])
    };
    selector.is_some_and(|selector| slices::selects(&selector, &pod_labels(workload)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn an_object_that_would_become_another_one_is_refused() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "cart", "namespace": "shop"}});
        let identity = Identity::of(&(&object).into());
        assert!(identity.check(&(&object).into()).is_ok());
        for (field, path) in [
            ("apiVersion", "/apiVersion"),
            ("kind", "/kind"),
            ("metadata.name", "/metadata/name"),
            ("metadata.namespace", "/metadata/namespace"),
        ] {
            for value in [Json::Null, json!("other"), json!({})] {
                let mut other = object.clone();
                *other.pointer_mut(path).unwrap() = value;
                let error = identity.check(&(&other).into()).unwrap_err().to_string();
                assert!(
                    error.starts_with(&format!("Deployment shop/cart: its {field} would change")),
                    "{error}"
                );
            }
        }
    }
}
