//! Gives the objects of the input their types, and checks each.

use rouse_kube::objects::{EndpointSlice, Node, Pod, Service};

use super::notes::Notes;
use crate::CommandError;
use crate::input::{Head, InputSource};
use rouse_config::document::{self, DocumentError, Value, from_node};

/// A kind of object that some command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    EndpointSlice,
    Service,
    Pod,
    Node,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::EndpointSlice, Kind::Service, Kind::Pod, Kind::Node];

    fn name(self) -> &'static str {
        match self {
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Service => "Service",
            Kind::Pod => "Pod",
            Kind::Node => "Node",
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            Kind::EndpointSlice => "discovery.k8s.io/v1",
            Kind::Service | Kind::Pod | Kind::Node => "v1",
        }
    }

    /// Finds a kind by group and version too: Knative also has a `Service`.
    fn of(api_version: &str, kind: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|known| known.name() == kind && known.api_version() == api_version)
    }
}

/// An object of a known kind.
#[derive(Debug)]
pub(super) enum Object {
    EndpointSlice(EndpointSlice),
    Service(Box<Service>),
    Pod(Box<Pod>),
    Node(Node),
}

/// Calls `keep` for every object of a `wanted` kind, in order. Counts the others in `notes`.
pub(super) fn objects(
    source: &InputSource,
    wanted: &[Kind],
    notes: &mut Notes,
    keep: &mut dyn FnMut(Object, &mut Notes),
) -> Result<(), CommandError> {
    let mut each = |node: document::DocumentNode, list: Option<&Head>| {
        if let Some(object) = typed(node, list, wanted, notes)? {
            keep(object, notes);
        }
        Ok(())
    };
    source.walk("kubectl get services,endpointslices -A -o json", &mut each)
}

/// The names of the kinds, for a message.
pub(super) fn named(kinds: &[Kind]) -> String {
    kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

/// The object in `node`, if it is `wanted`. Takes a missing `apiVersion` or `kind` from its list.
fn typed(
    node: document::DocumentNode,
    list: Option<&Head>,
    wanted: &[Kind],
    notes: &mut Notes,
) -> Result<Option<Object>, DocumentError> {
    if !matches!(node.value, Value::Map(_)) {
        let problem = format!("expected a Kubernetes object with apiVersion and kind, found {}", node.value);
        return Err(DocumentError::new(node.mark, problem));
    }
    let api_version = said(&node, "apiVersion", list.map(|list| &*list.api_version))?;
    let kind = said(&node, "kind", list.map(|list| &*list.kind))?;
    match Kind::of(api_version, kind).filter(|kind| wanted.contains(kind)) {
        Some(Kind::EndpointSlice) => from_node(node).map(Object::EndpointSlice).map(Some),
        Some(Kind::Service) => from_node(node).map(Object::Service).map(Some),
        Some(Kind::Pod) => from_node(node).map(Object::Pod).map(Some),
        Some(Kind::Node) => from_node(node).map(Object::Node).map(Some),
        None => {
            notes.skipped(api_version, kind);
            Ok(None)
        }
    }
}

fn said<'n>(
    node: &'n document::DocumentNode,
    key: &str,
    by_list: Option<&'n str>,
) -> Result<&'n str, DocumentError> {
    match node.get(key) {
        Some(value) => value.as_str().ok_or_else(|| {
            DocumentError::new(value.mark, format!("expected a string, found {}", value.value)).under(key)
        }),
        None => by_list.ok_or_else(|| {
            let example = if key == "kind" { "EndpointSlice" } else { "discovery.k8s.io/v1" };
            DocumentError::new(node.mark, format!("missing: every object needs it, for example {example}"))
                .under(key)
        }),
    }
}
