//! Reads and changes document trees: the value at a path, members of objects, elements of lists.

use std::mem;

use rouse_config::document::{DocumentNode, MapEntry, Mark, Value};

/// One step into a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathStep {
    /// The member of an object.
    Key(String),
    /// The element of a list whose `name` is this.
    Named(String),
    /// The only element of a list.
    Only,
}

impl From<&str> for PathStep {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

/// The value at keys that follow each other.
pub(super) fn at<'n>(node: &'n DocumentNode, keys: &[&str]) -> Option<&'n DocumentNode> {
    keys.iter().try_fold(node, |node, key| node.get(key))
}

/// The text at these keys.
pub(super) fn text<'n>(node: &'n DocumentNode, keys: &[&str]) -> Option<&'n str> {
    at(node, keys)?.as_str()
}

/// The elements of the list at these keys; none if there is no list.
pub(super) fn elements<'n>(node: &'n DocumentNode, keys: &[&str]) -> &'n [DocumentNode] {
    match at(node, keys).map(|node| &node.value) {
        Some(Value::List(list)) => list,
        _ => &[],
    }
}

/// The members of the object at these keys; none if there is no object.
pub(super) fn members<'n>(node: &'n DocumentNode, keys: &[&str]) -> &'n [MapEntry] {
    match at(node, keys).map(|node| &node.value) {
        Some(Value::Map(entries)) => entries,
        _ => &[],
    }
}

/// A member of an object, with its place.
pub(super) fn member<'n>(node: &'n DocumentNode, key: &str) -> Option<(usize, &'n DocumentNode)> {
    let place = members(node, &[]).iter().position(|entry| &*entry.key == key)?;
    Some((place, node.get(key)?))
}

/// The value at `path`.
pub(super) fn find_mut<'n>(node: &'n mut DocumentNode, path: &[PathStep]) -> Option<&'n mut DocumentNode> {
    path.iter().try_fold(node, |node, step| match (step, &mut node.value) {
        (PathStep::Key(key), Value::Map(entries)) => {
            entries.iter_mut().find(|entry| *entry.key == **key).map(|entry| &mut entry.value)
        }
        (PathStep::Named(name), Value::List(list)) => list.iter_mut().find(|it| is_named(it, name)),
        (PathStep::Only, Value::List(list)) => match &mut **list {
            [only] => Some(only),
            _ => None,
        },
        _ => None,
    })
}

/// True if `name` of the object is this.
pub(super) fn is_named(node: &DocumentNode, name: &str) -> bool {
    node.get("name").and_then(DocumentNode::as_str) == Some(name)
}

/// True for an object or a list without content.
pub(super) fn is_empty(node: &DocumentNode) -> bool {
    match &node.value {
        Value::Map(entries) => entries.is_empty(),
        Value::List(list) => list.is_empty(),
        _ => false,
    }
}

/// Puts a member into an object: in the place of the one that is there, or else at `place`, or at the end.
pub(super) fn put(node: &mut DocumentNode, key: &str, value: DocumentNode, place: Option<usize>) {
    let Value::Map(entries) = &mut node.value else { return };
    if let Some(entry) = entries.iter_mut().find(|entry| &*entry.key == key) {
        entry.value = value;
        return;
    }
    let mut all = mem::take(entries).into_vec();
    let place = place.unwrap_or(all.len()).min(all.len());
    all.insert(place, MapEntry { mark: Mark::START, key: key.into(), value });
    *entries = all.into();
}

/// Takes a member out of an object, with its place.
pub(super) fn take(node: &mut DocumentNode, key: &str) -> Option<(usize, DocumentNode)> {
    let Value::Map(entries) = &mut node.value else { return None };
    let place = entries.iter().position(|entry| &*entry.key == key)?;
    let mut all = mem::take(entries).into_vec();
    let taken = all.remove(place);
    *entries = all.into();
    Some((place, taken.value))
}

/// Adds an element to the end of a list.
pub(super) fn push(node: &mut DocumentNode, element: DocumentNode) {
    let Value::List(list) = &mut node.value else { return };
    let mut all = mem::take(list).into_vec();
    all.push(element);
    *list = all.into();
}

/// Removes the elements of a list with this name. Returns false if there is none.
pub(super) fn drop_named(node: &mut DocumentNode, name: &str) -> bool {
    let Value::List(list) = &mut node.value else { return false };
    let before = list.len();
    *list = mem::take(list).into_vec().into_iter().filter(|it| !is_named(it, name)).collect();
    list.len() < before
}
