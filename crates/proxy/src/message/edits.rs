//! Changes to the headers of a request, as a list that `upstream` applies in order.

use http::header::{HeaderName, HeaderValue};

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeaderEdit {
    /// Replaces all values of the header by this one.
    Set(HeaderName, HeaderValue),
    /// Adds a value to those that are there.
    Append(HeaderName, HeaderValue),
    /// Removes all values of the header.
    Remove(HeaderName),
    /// Removes every header whose name begins like this, in lower case.
    RemovePrefix(&'static str),
}

/// A usual request has no more edits than these, so that the list is allocated once.
const USUAL: usize = 8;

/// Changes to the headers of a request, in order.
#[derive(Debug)]
pub(crate) struct HeaderEdits(Vec<HeaderEdit>);

impl HeaderEdits {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(USUAL))
    }

    pub(crate) fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.0.push(HeaderEdit::Set(name, value));
    }

    pub(crate) fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.0.push(HeaderEdit::Append(name, value));
    }

    pub(crate) fn remove(&mut self, name: HeaderName) {
        self.0.push(HeaderEdit::Remove(name));
    }

    pub(crate) fn remove_prefix(&mut self, prefix: &'static str) {
        self.0.push(HeaderEdit::RemovePrefix(prefix));
    }
}

impl IntoIterator for HeaderEdits {
    type Item = HeaderEdit;
    type IntoIter = std::vec::IntoIter<HeaderEdit>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
