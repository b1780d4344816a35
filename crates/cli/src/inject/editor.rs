//! Changes an object and records how to undo each change in an annotation of the object, so that `--remove` restores exactly
//! what was there.

use rouse_config::document::json::JsonText;
use rouse_config::document::{DocumentError, DocumentNode, Mark, Value};
use rouse_kube::objects::injected::INJECTED_ANNOTATION;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_json::value::{RawValue, to_raw_value};

use super::tree::{self, PathStep};

/// The annotation with the record.
pub(super) const INJECTED: &str = INJECTED_ANNOTATION;

/// How to undo one change. The path is that of the changed object or list: `spec/ports/[http]`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Undo {
    /// The member was different, or was removed: put it back at its place. The value is text, since it keeps the order of keys.
    Restore { path: String, key: String, place: usize, value: Box<RawValue> },
    /// The member did not exist.
    Remove { path: String, key: String },
    /// The member was created to hold others: remove it if nothing else is in it.
    RemoveEmpty { path: String, key: String },
    /// The element was added.
    Drop { path: String, name: String },
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
}

/// An object that is being changed.
#[derive(Debug)]
pub(super) struct Editor<'n> {
    object: &'n mut DocumentNode,
    record: Vec<Undo>,
    /// The first error of serde, which does not fail on trees.
    failed: Option<serde_json::Error>,
}

impl<'n> Editor<'n> {
    /// Starts to change `object`.
    pub(super) fn new(object: &'n mut DocumentNode) -> Self {
        Self { object, record: Vec::new(), failed: None }
    }

    /// Sets a member of the object at `path`.
    pub(super) fn set(&mut self, path: &[PathStep], key: &str, value: &Json) {
        let Some(node) = tree::find_mut(self.object, path) else { return };
        match tree::member(node, key).map(|(place, old)| (place, to_raw_value(old))) {
            Some((place, old)) => self.restores(path, key, place, old),
            None => self.record.push(Undo::Remove { path: written(path), key: key.to_owned() }),
        }
        if let Some(node) = tree::find_mut(self.object, path) {
            tree::put(node, key, value.into(), None);
        }
    }

    /// Removes a member of the object at `path`, if it is there.
    pub(super) fn unset(&mut self, path: &[PathStep], key: &str) {
        let Some(node) = tree::find_mut(self.object, path) else { return };
        if let Some((place, old)) = tree::take(node, key) {
            self.restores(path, key, place, to_raw_value(&old));
        }
    }

    fn restores(
        &mut self,
        path: &[PathStep],
        key: &str,
        place: usize,
        value: Result<Box<RawValue>, serde_json::Error>,
    ) {
        match value {
            Ok(value) => {
                self.record.push(Undo::Restore { path: written(path), key: key.to_owned(), place, value });
            }
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    /// Adds a named element to the list `key` of the object at `path`. Creates the list if there is none.
    pub(super) fn add(&mut self, path: &[PathStep], key: &str, element: &Json) {
        self.create(path, key, Value::List(Box::default()));
        let path = [path, &[key.into()]].concat();
        let Some(list) = tree::find_mut(self.object, &path) else { return };
        tree::push(list, element.into());
        let name = element.get("name").and_then(Json::as_str).unwrap_or_default().to_owned();
        self.record.push(Undo::Drop { path: written(&path), name });
    }

    /// Creates the member `key` of the object at `path`, if it is absent or null.
    pub(super) fn create(&mut self, path: &[PathStep], key: &str, empty: Value) {
        let Some(node) = tree::find_mut(self.object, path) else { return };
        let undo = match tree::member(node, key) {
            None => Undo::RemoveEmpty { path: written(path), key: key.to_owned() },
            Some((place, DocumentNode { value: Value::Null, .. })) => {
                let value = RawValue::NULL.to_owned();
                Undo::Restore { path: written(path), key: key.to_owned(), place, value }
            }
            Some(_) => return,
        };
        tree::put(node, key, DocumentNode { mark: Mark::START, value: empty }, None);
        self.record.push(undo);
    }

    /// Writes the record into the annotation.
    pub(super) fn finish(mut self) -> Result<(), serde_json::Error> {
        let (metadata, annotations) = (PathStep::from("metadata"), "annotations");
        self.create(&[], "metadata", Value::Map(Box::default()));
        self.create(std::slice::from_ref(&metadata), annotations, Value::Map(Box::default()));
        if let Some(error) = self.failed {
            return Err(error);
        }
        let record = Json::String(serde_json::to_string(&self.record)?);
        if let Some(node) = tree::find_mut(self.object, &[metadata, annotations.into()]) {
            tree::put(node, INJECTED, (&record).into(), None);
        }
        Ok(())
    }
}

/// Undoes all changes of an object that has the annotation. Returns false if it has none.
pub(super) fn restore(object: &mut DocumentNode) -> Result<bool, RestoreError> {
    let annotations = [PathStep::from("metadata"), "annotations".into()];
    let Some(node) = tree::find_mut(object, &annotations) else { return Ok(false) };
    let Some((_, record)) = tree::take(node, INJECTED) else { return Ok(false) };
    let record = record.as_str().unwrap_or_default();
    let record: Vec<Undo> = serde_json::from_str(record).map_err(RestoreError::BadRecord)?;
    for undo in record.into_iter().rev() {
        apply(object, undo)?;
    }
    Ok(true)
}

fn find<'n>(object: &'n mut DocumentNode, path: &str) -> Result<&'n mut DocumentNode, RestoreError> {
    tree::find_mut(object, &read(path)).ok_or_else(|| RestoreError::NotThere(path.to_owned()))
}

fn apply(object: &mut DocumentNode, undo: Undo) -> Result<(), RestoreError> {
    match undo {
        Undo::Restore { path, key, place, value } => {
            let mut text = JsonText::new(value.get());
            let value = text.value_at(0).and_then(|(raw, _)| text.node(raw));
            tree::put(find(object, &path)?, &key, value.map_err(RestoreError::BadValue)?, Some(place));
        }
        Undo::Remove { path, key } => drop(tree::take(find(object, &path)?, &key)),
        Undo::RemoveEmpty { path, key } => {
            let node = find(object, &path)?;
            if node.get(&key).is_some_and(tree::is_empty) {
                tree::take(node, &key);
            }
        }
        Undo::Drop { path, name } => {
            if !tree::drop_named(find(object, &path)?, &name) {
                return Err(RestoreError::NotThere(format!("{path}/[{name}]")));
            }
        }
    }
    Ok(())
}

/// A path as the record has it: keys and `[names]`, separated by slashes. Neither has a slash.
fn written(path: &[PathStep]) -> String {
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
