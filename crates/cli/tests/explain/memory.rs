//! A large input costs a small multiple of its size.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};

use crate::command;

/// Large enough that the program's own few megabytes do not count, small enough for a debug build.
const SIZE: usize = 30 << 20;

/// Peak memory may be this many times the input.
const BOUND: f64 = 2.5;

/// Endpoints as kubectl prints them, in JSON or YAML.
fn slices(json: bool) -> String {
    let mut text = String::with_capacity(SIZE + (1 << 20));
    text +=
        if json { "{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n" } else { "apiVersion: v1\nitems:\n" };
    let mut slice = 0;
    while text.len() < SIZE {
        if json && slice > 0 {
            text += ",\n";
        }
        let endpoints: Vec<String> = (0..100).map(|index| endpoint(json, slice * 100 + index)).collect();
        let (service, endpoints) = (slice / 10, endpoints.join(if json { ",\n" } else { "" }));
        let labels = "endpointslice.kubernetes.io/managed-by";
        if json {
            write!(text, "        {{\n            \"addressType\": \"IPv4\",\n            \"apiVersion\": \"discovery.k8s.io/v1\",\n            \"endpoints\": [\n{endpoints}\n            ],\n            \"kind\": \"EndpointSlice\",\n            \"metadata\": {{\n                \"labels\": {{\n                    \"{labels}\": \"x\",\n                    \"kubernetes.io/service-name\": \"s{service}\"\n                }},\n                \"name\": \"s-{slice}\",\n                \"namespace\": \"shop\"\n            }},\n            \"ports\": [\n                {{\n                    \"name\": \"http\",\n                    \"port\": 8080,\n                    \"protocol\": \"TCP\"\n                }}\n            ]\n        }}")
        } else {
            write!(text, "- addressType: IPv4\n  apiVersion: discovery.k8s.io/v1\n  endpoints:\n{endpoints}  kind: EndpointSlice\n  metadata:\n    labels:\n      {labels}: x\n      kubernetes.io/service-name: s{service}\n    name: s-{slice}\n    namespace: shop\n  ports:\n  - name: http\n    port: 8080\n    protocol: TCP\n")
        }
        .unwrap();
        slice += 1;
    }
    text + if json { "\n    ],\n    \"kind\": \"List\"\n}\n" } else { "kind: List\n" }
}

fn endpoint(json: bool, number: usize) -> String {
    let (ip, pod) = (
        format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255),
        format!("pod-7d9f8b6c5-{number:05x}"),
    );
    let uid = format!("{number:08x}-0000-4000-8000-{number:012x}");
    if json {
        format!(
            "                {{\n                    \"addresses\": [\n                        \"{ip}\"\n                    ],\n                    \"conditions\": {{\n                        \"ready\": true,\n                        \"serving\": true,\n                        \"terminating\": false\n                    }},\n                    \"nodeName\": \"node-1\",\n                    \"targetRef\": {{\n                        \"kind\": \"Pod\",\n                        \"name\": \"{pod}\",\n                        \"namespace\": \"shop\",\n                        \"uid\": \"{uid}\"\n                    }},\n                    \"zone\": \"a\"\n                }}"
        )
    } else {
        format!(
            "  - addresses:\n    - {ip}\n    conditions:\n      ready: true\n      serving: true\n      terminating: false\n    nodeName: node-1\n    targetRef:\n      kind: Pod\n      name: {pod}\n      namespace: shop\n      uid: {uid}\n    zone: a\n"
        )
    }
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
        // The answer is far larger than a pipe: while we have not read all of it, the child is there to be asked.
        let (mut most, mut total, mut chunk) = (0, 0, vec![0; 1 << 16]);
        while let read @ 1.. = out.read(&mut chunk).unwrap() {
            total += read;
            most = most.max(peak(&child).unwrap_or(0));
        }
        assert!(child.wait().unwrap().success());
        assert!(total > text.len() / 4, "an answer of {total} bytes cannot hold every endpoint");
        assert!(most > text.len(), "a peak of {most} bytes cannot be right");
        let times = most as f64 / text.len() as f64;
        println!("json: {json}; input {} MB, peak {} MB, {times:.2} times", text.len() >> 20, most >> 20);
        assert!(times < BOUND, "json: {json}: peak memory is {times:.2} times the input, more than {BOUND}");
    }
}
