//! Changes an object and records how to undo each change in an annotation of the object, so that `--remove` restores exactly
//! what was there.

use rouse_config::document::{DocumentNode, Mark, Value};
use serde_json::Value as Json;
use serde_json::value::{RawValue, to_raw_value};

use super::document_tree::{self as tree, PathStep};
use super::record::{INJECTED, Undo, written};

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

    /// Creates the member `key` of the object at `path`, if it is absent or null. `record.rs` lists what may be recorded: a new
    /// kind of change needs an entry there.
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
