//! Reads Kubernetes objects from a file or stdin, one at a time, and checks each.
//!
//! The text is in memory once; of the objects, only what the caller keeps. [`documents`] finds the objects in the text; this
//! file gives them their types.

mod documents;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use rouse_kube::objects::{EndpointSlice, Node, Pod, Service};

use super::notes::{Notes, printable};
use crate::CommandError;
use documents::Head;
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

/// The input text, and its name for errors.
#[derive(Debug)]
pub(super) struct Source {
    name: String,
    text: String,
}

impl Source {
    /// Reads the file, or stdin for `-`.
    pub(super) fn load(file: &Path, stdin: &mut dyn Read, notes: &mut Notes) -> Result<Self, CommandError> {
        if file == Path::new("-") {
            if io::stdin().is_terminal() {
                notes.note("reading objects from the terminal; end with Ctrl-D, or give -f FILE");
            }
            return Self::new("<stdin>".to_owned(), stdin);
        }
        let name = printable(&file.display().to_string());
        if file.is_dir() {
            return Err(CommandError::Input(format!(
                "{name} is a directory: give a file, or - for standard input"
            )));
        }
        match File::open(file) {
            Ok(mut open) => Self::new(name, &mut open),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CommandError::Input(format!(
                "{name}: no such file: check the path, or use -f - to read from a pipe"
            ))),
            Err(error) => Err(CommandError::Io { what: format!("cannot open {name}"), error }),
        }
    }

    fn new(name: String, from: &mut dyn Read) -> Result<Self, CommandError> {
        let mut bytes = Vec::new();
        if let Err(error) = from.read_to_end(&mut bytes) {
            return Err(CommandError::Io { what: format!("cannot read {name}"), error });
        }
        if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
            let hint = "it looks like UTF-16, which PowerShell's > writes: save it as UTF-8";
            return Err(CommandError::Input(format!("{name}, line 1: not UTF-8 text: {hint}")));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) => {
                let good = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
                let line = 1 + good.split(|byte| *byte == b'\n').skip(1).count();
                let byte = error.as_bytes().get(good.len()).copied().unwrap_or_default();
                let hint = "expected JSON or YAML, as `kubectl get … -o json` prints it";
                Err(CommandError::Input(format!(
                    "{name}, line {line}: not UTF-8 text (byte 0x{byte:02x}): {hint}"
                )))
            }
        }
    }

    /// Calls `keep` for every object of a `wanted` kind, in order. Counts the others in `notes`.
    pub(super) fn objects(
        &self,
        wanted: &[Kind],
        notes: &mut Notes,
        keep: &mut dyn FnMut(Object, &mut Notes),
    ) -> Result<(), CommandError> {
        let text = self.text.strip_prefix('\u{feff}').unwrap_or(&self.text);
        let mut each = |node: document::DocumentNode, list: Option<&Head>| {
            if let Some(object) = typed(node, list, wanted, notes)? {
                keep(object, notes);
            }
            Ok(())
        };
        match documents::walk(text, &mut each) {
            Ok(0) => Err(CommandError::Input(format!(
                "{}: no objects in it: expected Kubernetes objects as JSON or YAML, for example from \
                 `kubectl get services,endpointslices -A -o json`",
                self.name
            ))),
            Ok(_) => Ok(()),
            Err((document, fault)) => {
                Err(CommandError::Input(printable(&format!("{}, document {document}, {fault}", self.name))))
            }
        }
    }
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
