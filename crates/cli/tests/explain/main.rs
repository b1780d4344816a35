//! Runs the real binary with `rouse explain`: input on stdin, output and exit code.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a panic is how a test fails")]

mod endpoints;
mod input;
mod memory;
mod slices;
mod vectors;

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

/// The result of one run.
struct Answer {
    code: i32,
    out: String,
    err: String,
}

impl Answer {
    /// The output as JSON, of a run that must have succeeded.
    fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// Asserts that each of `parts` is in the output.
    #[track_caller]
    fn prints(&self, parts: &[&str]) {
        contains(&self.out, parts);
    }

    /// Asserts that each of `parts` is in the warnings and errors.
    #[track_caller]
    fn complains(&self, parts: &[&str]) {
        contains(&self.err, parts);
    }
}

#[track_caller]
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// `rouse` with `arguments`, to be run from the root of the repository.
fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rouse"));
    command.args(arguments.split_whitespace()).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `rouse` with `arguments`, none of which may need quotes, and `input` on stdin.
fn rouse(arguments: &str, input: impl Into<Vec<u8>>) -> Answer {
    let mut child = command(arguments).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.into();
    // Concurrently with reading: with large inputs both sides would wait for each other. A command that does not read its
    // input closes the pipe, which is not an error here.
    let feed = thread::spawn(move || stdin.write_all(&input).ok());
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// `value` as block-style YAML.
fn yaml(value: &Value) -> String {
    let mut out = Vec::new();
    rouse_config::document::emit::yaml(&mut out, value, 0).unwrap();
    String::from_utf8(out).unwrap()
}

/// A `List` as kubectl prints it.
fn list(items: Vec<Value>) -> Value {
    let items = Value::from(items);
    serde_json::json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}})
}
