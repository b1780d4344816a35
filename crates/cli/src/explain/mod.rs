//! `rouse explain`: shows how Rouse reads Kubernetes objects, without a cluster; and how a running controller scales.
//!
//! [`input`] reads the objects one at a time; [`endpoints`] and [`slices`] keep what they need of each, and print. Warnings and
//! notes go to stderr: [`notes`].

mod endpoints;
mod input;
mod notes;
mod scaling;
mod slices;

use std::cell::Cell;

use serde::{Serialize, Serializer};

use crate::args::{Explain, Explained};
use crate::{CommandError, Streams};

/// Runs `rouse explain …`.
pub(crate) fn run(explain: &Explain, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    match &explain.what {
        Explained::Endpoints(args) => endpoints::run(args, streams),
        Explained::Scaling(args) => scaling::run(args, streams),
        Explained::Slices(args) => slices::run(args, streams),
    }
}

/// A list that is built while it is written: as a whole it could be larger than the input.
struct OneByOne<I>(Cell<Option<I>>);

impl<I> OneByOne<I> {
    fn new(items: I) -> Self {
        Self(Cell::new(Some(items)))
    }
}

impl<I: Iterator<Item: Serialize>> Serialize for OneByOne<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}
