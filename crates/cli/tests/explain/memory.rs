//! The memory of `rouse explain` for a large input is a small multiple of its size.

use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};

use rouse_config::document::emit;
use serde_json::{Value, json};

use crate::command;

/// Large enough that the program's own few megabytes do not count, small enough for a debug build.
const SIZE: usize = 30 << 20;

/// Peak memory may be this many per cent of the input.
const BOUND: usize = 250;

/// A list of slices as kubectl prints it, in JSON or YAML.
fn slices(json: bool) -> String {
    let mut text = Vec::with_capacity(SIZE + (1 << 20));
    text.extend(
        if json { "{\"apiVersion\": \"v1\",\n\"items\": [\n" } else { "apiVersion: v1\nitems:\n" }.bytes(),
    );
    for number in 0.. {
        if text.len() > SIZE {
            break;
        }
        if json {
            text.extend(if number > 0 { ",\n" } else { "" }.bytes());
            serde_json::to_writer_pretty(&mut text, &slice(number)).unwrap();
        } else {
            emit::item(&mut text, &slice(number), 0).unwrap();
        }
    }
    text.extend(if json { "],\n\"kind\": \"List\"}\n" } else { "kind: List\n" }.bytes());
    String::from_utf8(text).unwrap()
}

/// A full slice; ten of them belong to one service.
fn slice(number: usize) -> Value {
    let endpoint = |index: usize| {
        let ip = format!("10.{}.{}.{}", index >> 16, index >> 8 & 255, index & 255);
        let uid = format!("{index:08x}-0000-4000-8000-{index:012x}");
        json!({
            "addresses": [ip],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node-1",
            "targetRef": {"kind": "Pod", "name": format!("app-7d9f8b6c5-{index:05x}"), "namespace": "shop", "uid": uid},
            "zone": "zone-a",
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("app-{number}"), "namespace": "shop",
            "labels": {"kubernetes.io/service-name": format!("app-{}", number / 10)},
        },
        "endpoints": (number * 100..number * 100 + 100).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// The most memory the child ever had, in bytes.
fn peak(child: &Child) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib << 10)
}

#[test]
fn a_large_input_costs_a_small_multiple_of_its_size() {
    if !fs::exists("/proc/self/status").unwrap_or(false) {
        eprintln!("SKIPPED: a_large_input_costs_a_small_multiple_of_its_size needs /proc, which is not here");
        return;
    }
    for json in [true, false] {
        let text = slices(json);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        let arguments = format!("explain endpoints -o json -f {}", file.path().display());
        let mut child = command(&arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        // The output is far larger than a pipe, so the child still runs until all of it is read.
        let (mut most, mut total, mut chunk) = (0, 0, vec![0; 1 << 16]);
        while let read @ 1.. = out.read(&mut chunk).unwrap() {
            total += read;
            most = most.max(peak(&child).unwrap_or(0));
        }
        assert!(child.wait().unwrap().success());
        assert!(total > text.len() / 4, "an answer of {total} bytes cannot hold every endpoint");
        assert!(most > text.len(), "a peak of {most} bytes cannot be right");
        let percent = most * 100 / text.len();
        println!("json: {json}; input {} MB, peak {} MB, {percent} %", text.len() >> 20, most >> 20);
        assert!(
            percent < BOUND,
            "json: {json}: peak memory is {percent} % of the input, more than {BOUND} %"
        );
    }
}
