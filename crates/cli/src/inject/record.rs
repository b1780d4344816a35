//! The record of changes in the annotation of an object, and how it is undone. Rejects records that `inject` does not write:
//! tenants can edit annotations, and the operator who applies the output has more rights than they have.

use rouse_config::document::json::JsonText;
use rouse_config::document::{DocumentError, DocumentNode, Value};
use rouse_kube::objects::injected::INJECTED_ANNOTATION;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::document_tree::{self as tree, PathStep};
use super::patch::{SIDECAR, VOLUME};
use super::plan::{POD, handler};

/// The annotation with the record.
pub(super) const INJECTED: &str = INJECTED_ANNOTATION;

/// How to undo one change. The path is that of the changed object or list: `spec/ports/[http]`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Undo {
    /// The member was different, or was removed: put it back at its place. The value is text, since it keeps the order of keys.
    Restore { path: String, key: String, place: usize, value: Box<RawValue> },
    /// The member did not exist.
    Remove { path: String, key: String },
    /// The member was created to hold others: remove it if nothing else is in it.
    RemoveEmpty { path: String, key: String },
    /// The element was added.
    Drop { path: String, name: String },
}

/// What kind of object has the record: `inject` changes other parts of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectRole {
    /// A workload with pods.
    Workload,
    /// A Service.
    Service,
}

/// Why an object cannot be restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    #[error("the annotation {INJECTED} cannot be read: {0}")]
    BadRecord(serde_json::Error),
    #[error("the annotation {INJECTED} cannot be read: {0}")]
    BadValue(DocumentError),
    #[error("the annotation {INJECTED} refers to {0}, which is not there any more: restore it by hand")]
    NotThere(String),
    #[error(
        "the annotation {INJECTED} would change {path}, which rouse inject does not write: compare the object with its source, undo the \
         sidecar by hand, and remove the annotation"
    )]
    NotOurs { path: String },
}

/// Undoes all changes of an object that has the annotation. Returns false if it has none.
pub(super) fn restore(object: &mut DocumentNode, role: ObjectRole) -> Result<bool, RestoreError> {
    let annotations = [PathStep::from("metadata"), "annotations".into()];
    let Some(node) = tree::find_mut(object, &annotations) else { return Ok(false) };
    let Some((_, record)) = tree::take(node, INJECTED) else { return Ok(false) };
    let record = record.as_str().unwrap_or_default();
    let record: Vec<Undo> = serde_json::from_str(record).map_err(RestoreError::BadRecord)?;
    for undo in record.into_iter().rev() {
        Step::checked(undo, role)?.apply(object)?;
    }
    Ok(true)
}

/// A step of the record that `inject` writes.
#[derive(Debug)]
struct Step {
    path: Vec<PathStep>,
    action: Action,
}

#[derive(Debug)]
enum Action {
    /// Puts a member back at its place.
    Put { key: String, place: usize, value: DocumentNode },
    /// Removes a member.
    Remove { key: String },
    /// Removes a member, or puts null back at its place, if the member is empty.
    Empty { key: String, null_at: Option<usize> },
    /// Removes an element.
    Drop { name: String },
}

/// The parts of objects that `inject` changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Metadata,
    Pod,
    Containers,
    InitContainers,
    Volumes,
    Container,
    Lifecycle,
    ServicePort,
}

impl Part {
    /// The part at this path; none for every path that `inject` does not change.
    fn at(path: &[PathStep], role: ObjectRole) -> Option<Self> {
        let key =
            |step: Option<&PathStep>, wanted: &str| matches!(step, Some(PathStep::Key(key)) if key == wanted);
        let is = |keys: &[&str]| {
            path.len() == keys.len() && path.iter().zip(keys).all(|(step, it)| key(Some(step), it))
        };
        if is(&["metadata"]) {
            return Some(Self::Metadata);
        }
        match role {
            ObjectRole::Service => match path {
                [spec, ports, PathStep::Named(_) | PathStep::Only]
                    if key(Some(spec), "spec") && key(Some(ports), "ports") =>
                {
                    Some(Self::ServicePort)
                }
                _ => None,
            },
            ObjectRole::Workload => {
                let (pod, rest) = path.split_at_checked(POD.len())?;
                if !pod.iter().zip(POD).all(|(step, it)| key(Some(step), it)) {
                    return None;
                }
                match rest {
                    [] => Some(Self::Pod),
                    [PathStep::Key(list)] => match &**list {
                        "containers" => Some(Self::Containers),
                        "initContainers" => Some(Self::InitContainers),
                        "volumes" => Some(Self::Volumes),
                        _ => None,
                    },
                    [PathStep::Key(list), PathStep::Named(_), rest @ ..] if list == "containers" => {
                        match rest {
                            [] => Some(Self::Container),
                            [PathStep::Key(key)] if key == "lifecycle" => Some(Self::Lifecycle),
                            _ => None,
                        }
                    }
                    _ => None,
                }
            }
        }
    }
}

impl Step {
    /// The step, if `inject` writes such a step for an object of this role.
    fn checked(undo: Undo, role: ObjectRole) -> Result<Self, RestoreError> {
        let (path, last) = match &undo {
            Undo::Restore { path, key, .. }
            | Undo::Remove { path, key }
            | Undo::RemoveEmpty { path, key } => (path, key.clone()),
            Undo::Drop { path, name } => (path, format!("[{name}]")),
        };
        let steps = read(path);
        let changed = written(&[&*steps, &[PathStep::Key(last)]].concat());
        let not_ours = || RestoreError::NotOurs { path: changed };
        let Some(part) = Part::at(&steps, role) else { return Err(not_ours()) };
        let action = match undo {
            Undo::Restore { key, place, value, .. } => {
                let mut text = JsonText::new(value.get());
                let value =
                    text.value_at(0).and_then(|(raw, _)| text.node(raw)).map_err(RestoreError::BadValue)?;
                put(part, key, place, value)
            }
            Undo::Remove { key, .. } => {
                matches!((part, &*key), (Part::Lifecycle, "preStop") | (Part::ServicePort, "targetPort"))
                    .then_some(Action::Remove { key })
            }
            Undo::RemoveEmpty { key, .. } => {
                is_created(part, &key).then_some(Action::Empty { key, null_at: None })
            }
            Undo::Drop { name, .. } => {
                let ours = match part {
                    Part::Containers | Part::InitContainers => name == SIDECAR,
                    Part::Volumes => name == VOLUME,
                    _ => false,
                };
                ours.then_some(Action::Drop { name })
            }
        };
        Ok(Self { action: action.ok_or_else(not_ours)?, path: steps })
    }

    fn apply(self, object: &mut DocumentNode) -> Result<(), RestoreError> {
        let node =
            tree::find_mut(object, &self.path).ok_or_else(|| RestoreError::NotThere(written(&self.path)))?;
        match self.action {
            Action::Put { key, place, value } => tree::put(node, &key, value, Some(place)),
            Action::Remove { key } => drop(tree::take(node, &key)),
            Action::Empty { key, null_at } => {
                if node.get(&key).is_some_and(tree::is_empty)
                    && let Some((_, mut member)) = tree::take(node, &key)
                    && let Some(null_at) = null_at
                {
                    member.value = Value::Null;
                    tree::put(node, &key, member, Some(null_at));
                }
            }
            Action::Drop { name } => {
                if !tree::drop_named(node, &name) {
                    return Err(RestoreError::NotThere(format!("{}/[{name}]", written(&self.path))));
                }
            }
        }
        Ok(())
    }
}

/// Whether `inject` creates this member to hold others.
fn is_created(part: Part, key: &str) -> bool {
    matches!(
        (part, key),
        (Part::Metadata, "annotations")
            | (Part::Pod, "initContainers" | "volumes")
            | (Part::Container, "lifecycle")
    )
}

/// Puts back a value, if `inject` replaces or removes such a value.
fn put(part: Part, key: String, place: usize, value: DocumentNode) -> Option<Action> {
    let is_null = value.value == Value::Null;
    if is_created(part, &key) {
        return is_null.then_some(Action::Empty { key, null_at: Some(place) });
    }
    let ours = match (part, &*key) {
        (Part::Lifecycle, "preStop") => is_null,
        // Only a probe that the sidecar can run is ever taken over.
        (Part::Container, "readinessProbe") => handler(&value).is_ok(),
        (Part::ServicePort, "targetPort") => matches!(value.value, Value::Integer(_) | Value::Text(_)),
        _ => false,
    };
    ours.then_some(Action::Put { key, place, value })
}

/// A path as the record has it: keys and `[names]`, separated by slashes. Neither has a slash.
pub(super) fn written(path: &[PathStep]) -> String {
    let steps: Vec<String> = path
        .iter()
        .map(|step| match step {
            PathStep::Key(key) => key.clone(),
            PathStep::Named(name) => format!("[{name}]"),
            PathStep::Only => "[]".to_owned(),
        })
        .collect();
    steps.join("/")
}

fn read(path: &str) -> Vec<PathStep> {
    let step = |step: &str| match step.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some("") => PathStep::Only,
        Some(name) => PathStep::Named(name.to_owned()),
        None => PathStep::Key(step.to_owned()),
    };
    path.split('/').filter(|it| !it.is_empty()).map(step).collect()
}
