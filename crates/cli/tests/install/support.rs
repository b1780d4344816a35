//! Shared helpers of the tests of `deploy/` and `rouse install`: running programs, reading YAML, finding objects.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rouse_config::document::from_node;
use rouse_config::document::yaml::Reader;
use serde_json::Value;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The result of a run.
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs `program`, and waits for its end.
pub(crate) fn run(program: &mut Command) -> Answer {
    let output = program.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// `rouse install` with `arguments`, none of which needs quotes.
pub(crate) fn install(arguments: &str) -> Answer {
    let mut rouse = Command::new(env!("CARGO_BIN_EXE_rouse"));
    run(rouse.arg("install").args(arguments.split_whitespace()).env_clear())
}

/// The objects that `rouse install` prints, which must succeed.
pub(crate) fn printed(arguments: &str) -> Vec<Value> {
    let answer = install(arguments);
    assert_eq!(answer.code, 0, "{arguments}: {}", answer.err);
    objects(&answer.out)
}

/// All documents of a YAML text that are not empty.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    let mut reader = Reader::new(text, 1);
    let mut objects: Vec<Value> = Vec::new();
    while reader.next_document().unwrap() {
        objects.push(from_node(reader.node().unwrap()).unwrap());
    }
    objects.retain(|object| !object.is_null());
    objects
}

/// The objects of all YAML files in a folder of `deploy/`, in the order of their names.
pub(crate) fn deployed(folder: &str) -> Vec<Value> {
    let files = fs::read_dir(root().join("deploy").join(folder)).unwrap();
    let files: BTreeSet<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    let yaml = files.iter().filter(|file| file.extension().is_some_and(|it| it == "yaml"));
    let all: Vec<Value> = yaml.flat_map(|file| objects(&fs::read_to_string(file).unwrap())).collect();
    assert!(!all.is_empty(), "nothing in {folder}");
    all
}

/// The text at `pointer`.
pub(crate) fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Kind, namespace and name: what an object is known by.
pub(crate) fn key(object: &Value) -> String {
    let [kind, namespace, name] =
        ["/kind", "/metadata/namespace", "/metadata/name"].map(|pointer| text(object, pointer));
    format!("{kind} {namespace}/{name}")
}

/// The same objects in a canonical order.
pub(crate) fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    objects.sort_by_key(key);
    objects
}

/// The only object of `kind` of the gateway.
pub(crate) fn gateway<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    of_component(objects, kind, "gateway")
}

/// The only object of `kind` of the controller.
pub(crate) fn controller<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    of_component(objects, kind, "controller")
}

fn of_component<'o>(objects: &'o [Value], kind: &str, component: &str) -> &'o Value {
    let found: Vec<&Value> = objects
        .iter()
        .filter(|object| text(object, "/kind") == kind)
        .filter(|object| text(object, "/metadata/labels/app.kubernetes.io~1component") == component)
        .collect();
    assert_eq!(found.len(), 1, "{kind} of the {component}");
    found[0]
}

/// The only object of `kind`.
pub(crate) fn one<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    let found: Vec<&Value> = objects.iter().filter(|object| text(object, "/kind") == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found[0]
}
