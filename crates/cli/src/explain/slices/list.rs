//! Prints the planned slices as a `List`, like kubectl.

use std::io::{self, Write};

use rouse_core::slices::{self as core, EndpointSlice};
use rouse_kube::objects;
use rouse_kube::objects::slices::written;
use serde::Serialize;

use super::super::OneByOne;
use super::Outcome;
use rouse_config::document::emit;

/// A slice with its `apiVersion` and `kind`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    slice: objects::EndpointSlice,
}

impl Object {
    /// `slice` of `service` as Kubernetes writes it.
    pub(super) fn new(slice: &EndpointSlice, service: &core::ServiceFacts) -> Self {
        Self { api_version: "discovery.k8s.io/v1", kind: "EndpointSlice", slice: written(slice, service) }
    }
}

fn items<'o>(outcomes: &'o [Outcome<'_>]) -> impl Iterator<Item = Object> + 'o {
    outcomes.iter().flat_map(|outcome| outcome.left_behind().map(|slice| Object::new(slice, outcome.service)))
}

/// Prints the list like `kubectl get -o yaml`.
pub(super) fn yaml(out: &mut dyn Write, outcomes: &[Outcome<'_>]) -> io::Result<()> {
    let mut items = items(outcomes).peekable();
    let none = if items.peek().is_none() { " []" } else { "" };
    writeln!(out, "apiVersion: v1\nitems:{none}")?;
    for item in items {
        emit::item(out, &serde_json::to_value(item)?, 0)?;
    }
    writeln!(out, "kind: List\nmetadata:\n  resourceVersion: \"\"")
}

/// Prints the list like `kubectl get -o json`.
pub(super) fn json(out: &mut dyn Write, outcomes: &[Outcome<'_>]) -> io::Result<()> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct List<I> {
        api_version: &'static str,
        items: I,
        kind: &'static str,
    }

    let list = List { api_version: "v1", items: OneByOne::new(items(outcomes)), kind: "List" };
    serde_json::to_writer_pretty(&mut *out, &list)?;
    writeln!(out)
}
