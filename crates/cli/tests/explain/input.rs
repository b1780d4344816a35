//! What the commands read, and what they say of what they cannot read.

use std::fs;

use serde_json::json;

use crate::{list, rouse, yaml};

const SLICE: &str = r#"{
  "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
  "metadata": {"name": "a", "namespace": "shop", "labels": {"kubernetes.io/service-name": "cart"}},
  "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"name": "http", "port": 80}]
}"#;

#[test]
fn however_the_objects_are_packed_the_answer_is_the_same() {
    let slice: serde_json::Value = serde_json::from_str(SLICE).unwrap();
    let mut second = slice.clone();
    second["metadata"]["name"] = "b".into();
    second["endpoints"][0]["addresses"][0] = "10.0.0.2".into();
    let bare = |object: &serde_json::Value| {
        let mut object = object.clone();
        object.as_object_mut().unwrap().retain(|key, _| key != "kind" && key != "apiVersion");
        object
    };
    let items = vec![slice.clone(), second.clone()];
    let typed = json!({"apiVersion": "discovery.k8s.io/v1", "items": [bare(&slice), bare(&second)], "kind": "EndpointSliceList"});
    let nested = list(vec![list(vec![slice.clone()]), second.clone()]);
    let (one, two) = (slice.to_string(), second.to_string());
    let expected = rouse("explain endpoints -o json", list(items.clone()).to_string()).json();
    assert_eq!(expected["services"][0]["ports"][0]["endpoints"].as_array().unwrap().len(), 2);
    for (packing, text) in [
        ("pretty JSON list", serde_json::to_string_pretty(&list(items.clone())).unwrap()),
        ("YAML list, kind last", yaml(&list(items.clone()))),
        (
            "YAML list, kind first",
            format!("kind: List\napiVersion: v1\nitems:\n{}", yaml(&items.clone().into())),
        ),
        ("typed JSON list", typed.to_string()),
        ("typed YAML list", yaml(&typed)),
        ("list in a list", nested.to_string()),
        ("list in a list in YAML", yaml(&nested)),
        ("concatenated JSON", format!("{one}{two}")),
        ("JSON lines", format!("{one}\n{two}\n")),
        ("JSON documents with separators", format!("---\n{one}\n---\n{two}\n")),
        ("YAML documents", format!("{}---\n{}", yaml(&slice), yaml(&second))),
        (
            "YAML documents with empty ones",
            format!("---\n---\n{}\n---\n# nothing\n---\n{}---\n", yaml(&slice), yaml(&second)),
        ),
        ("JSON and then YAML", format!("{one}\n---\n{}", yaml(&second))),
        ("YAML and then JSON", format!("{}---\n{two}", yaml(&slice))),
        ("with a byte order mark", format!("\u{feff}{one}{two}")),
        ("with a byte order mark in YAML", format!("\u{feff}{}---\n{}", yaml(&slice), yaml(&second))),
        ("with Windows line ends", format!("{}---\n{}", yaml(&slice), yaml(&second)).replace('\n', "\r\n")),
    ] {
        assert_eq!(rouse("explain endpoints -o json", text.clone()).json(), expected, "{packing}:\n{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        let from_file = rouse(&format!("explain endpoints -o json -f {}", file.path().display()), "");
        assert_eq!(from_file.json(), expected, "{packing} from a file");
    }
}

#[test]
fn objects_of_other_kinds_are_skipped_with_one_warning_per_kind() {
    let odd = json!({"apiVersion": "example.com/v1", "kind": "Odd", "metadata": 7, "items": {"a": [[[]]]}, "spec": null});
    let allow = json!({"apiVersion": "example.com/v1", "kind": "AllowList", "spec": {}});
    let knative = json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": []});
    let pod = json!({"apiVersion": "v1", "kind": "Pod"});
    let slice: serde_json::Value = serde_json::from_str(SLICE).unwrap();
    let mut objects = vec![odd.clone(); 3];
    objects.extend([allow, knative, pod, slice]);
    for text in [list(objects.clone()).to_string(), yaml(&list(objects))] {
        let answer = rouse("explain endpoints -o json", text);
        assert_eq!(answer.json()["services"].as_array().unwrap().len(), 1);
        for expected in [
            "warning: skipped 3 objects of kind Odd (example.com/v1); read are EndpointSlice, Service\n",
            "warning: skipped 1 object of kind AllowList (example.com/v1)",
            "warning: skipped 1 object of kind Service (serving.knative.dev/v1)",
            "warning: skipped 1 object of kind Pod (v1)",
        ] {
            assert!(answer.err.contains(expected), "no {expected:?} in {}", answer.err);
        }
        assert_eq!(answer.err.lines().count(), 4, "{}", answer.err);
    }
    // Also on its own, where `items` would make a list of it.
    for text in [odd.to_string(), yaml(&odd)] {
        assert_eq!(rouse("explain endpoints -o json", text).code, 0);
    }
}

#[test]
fn warnings_are_bounded() {
    let objects = (0..1000).map(|i| json!({"apiVersion": "v1", "kind": format!("Kind{i}")})).collect();
    let answer = rouse("explain endpoints", list(objects).to_string());
    assert!(answer.err.lines().count() < 30, "{}", answer.err);
    assert!(answer.err.contains("skipped 980 objects of kind other kinds"), "{}", answer.err);
}

/// Runs `explain endpoints` on `text`, which must be refused with all of `expected`.
#[track_caller]
fn refused(text: impl Into<Vec<u8>>, expected: &[&str]) {
    let answer = rouse("explain endpoints", text);
    assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{}", answer.err);
    for expected in expected {
        assert!(answer.err.contains(expected), "no {expected:?} in {}", answer.err);
    }
    assert!(answer.err.starts_with("error: <stdin>"), "{}", answer.err);
    assert!(answer.err.len() < 500, "too long: {}", answer.err);
}

#[test]
fn malformed_objects_are_refused_with_document_line_and_field() {
    let changed = |from: &str, to: &str| {
        assert!(SLICE.contains(from));
        SLICE.replace(from, to)
    };
    let spoiled = |from: &str, to: &str, expected: &[&str]| {
        let bad = changed(from, to);
        refused(bad.clone(), expected);
        // The same in YAML, and as the second document.
        let place = ["document 1", "line"].map(String::from);
        let same: Vec<&str> = expected.iter().copied().filter(|text| !text.starts_with("line")).collect();
        if let Ok(value) = serde_json::from_str::<serde_json::Value>(&bad) {
            refused(yaml(&value), &same);
            refused(
                format!("{}---\n{}", yaml(&serde_json::from_str(SLICE).unwrap()), yaml(&value)),
                &["document 2"],
            );
        }
        refused(format!("{SLICE}\n{bad}"), &["document 2"]);
        drop(place);
    };
    spoiled("\"kind\": \"EndpointSlice\",", "", &["document 1", "line 1, column 1", "kind: missing"]);
    spoiled("\"apiVersion\": \"discovery.k8s.io/v1\",", "", &["apiVersion: missing"]);
    spoiled(
        "\"kind\": \"EndpointSlice\"",
        "\"kind\": 7",
        &["line 2, column 51", "kind: expected a string, found the number 7"],
    );
    spoiled("\"name\": \"a\", ", "", &["line 3, column 15", "metadata.name: missing"]);
    spoiled(
        "\"name\": \"a\"",
        "\"name\": 5",
        &["metadata.name: expected a string, found the number 5 (put it in quotes)"],
    );
    spoiled("\"addressType\": \"IPv4\",", "", &["addressType: missing"]);
    spoiled(
        "\"IPv4\"",
        "\"IPX\"",
        &["line 4, column 18", "addressType: expected one of IPv4, IPv6, FQDN, found \"IPX\""],
    );
    spoiled("[{\"addresses\": [\"10.0.0.1\"]}]", "{}", &["endpoints: expected a list, found an object"]);
    spoiled("{\"addresses\": [\"10.0.0.1\"]}", "{}", &["endpoints[0].addresses: missing"]);
    spoiled(
        "{\"addresses\": [\"10.0.0.1\"]}",
        "[[\"10.0.0.1\"]]",
        &["endpoints[0]: expected an endpoint: an object with addresses, found a list"],
    );
    spoiled(
        "[\"10.0.0.1\"]}",
        "[10]}",
        &["endpoints[0].addresses[0]: expected a string, found the number 10"],
    );
    spoiled(
        "[\"10.0.0.1\"]}",
        "[\"x\"], \"conditions\": {\"ready\": \"yes\"}}",
        &["endpoints[0].conditions.ready: expected true or false, found the string \"yes\""],
    );
    spoiled(
        "[\"10.0.0.1\"]}",
        "[\"x\"], \"conditions\": []}",
        &["endpoints[0].conditions: expected an object with ready, serving and terminating, found a list"],
    );
    spoiled(
        "\"port\": 80",
        "\"port\": \"http\"",
        &["ports[0].port: expected a whole number, found the string \"http\""],
    );
    spoiled(
        "\"port\": 80",
        "\"port\": 65536",
        &["ports[0].port: expected a port number from 1 to 65535, found integer `65536`"],
    );
    spoiled(
        "{\"kubernetes.io/service-name\": \"cart\"}",
        "[]",
        &["metadata.labels: expected an object, found a list"],
    );
    spoiled(
        "\"cart\"",
        "true",
        &["metadata.labels[\"kubernetes.io/service-name\"]: expected a string, found true"],
    );
    spoiled(
        "\"port\": 80",
        "\"port\": 80, \"port\": 81",
        &["line 4", "ports[0].port: this key is there twice"],
    );
    spoiled(
        "\"endpoints\": [",
        "\"x\": {\"y\": 1, \"y\": 2}, \"endpoints\": [",
        &["x.y: this key is there twice"],
    );
}

#[test]
fn an_item_of_a_list_is_named_by_its_index() {
    let good: serde_json::Value = serde_json::from_str(SLICE).unwrap();
    let mut bad = good.clone();
    bad["ports"] = json!("http");
    let objects = list(vec![good.clone(), good, bad]);
    let expected = "items[2].ports: expected a list, found the string \"http\"";
    refused(serde_json::to_string_pretty(&objects).unwrap(), &["document 1, line 77, column 16", expected]);
    refused(yaml(&objects), &["document 1, line 44, column 10", expected]);
    refused(
        list(vec![json!(3)]).to_string(),
        &["items[0]: expected a Kubernetes object with apiVersion and kind, found the number 3"],
    );
    refused(r#"{"apiVersion": "v1", "kind": "List"}"#, &["items: missing"]);
    refused(
        r#"{"apiVersion": "v1", "kind": "List", "items": 3}"#,
        &["items: expected a list, found the number 3"],
    );
    refused(r#"{"kind": "List", "items": [], "items": []}"#, &["items: this key is there twice"]);
    refused("kind: List\nitems: []\nitems: []\n", &["line 3", "items: this key is there twice"]);
}

#[test]
fn text_that_is_no_json_or_yaml_is_refused_with_its_line() {
    for (text, expected) in [
        (
            "{\"apiVersion\": \"v1\",\n \"kind\": \"Pod\",\n",
            "document 1, line 3, column 0: not JSON: EOF while parsing",
        ),
        ("{\"a\": 1,\n \"b\" 2}", "line 2, column 6: not JSON: expected `:`"),
        ("{\"a\": 1} x", "line 1, column 10: not JSON: only another object may follow"),
        ("{\"a\": \"\\ud800\"}", "a: not JSON: "),
        (
            "[{\"kind\": \"Pod\"}]",
            "expected an object with apiVersion and kind, found a list: take the objects out",
        ),
        ("kind: Pod\n  apiVersion: v1\n", "line 2, column 13: not YAML: "),
        ("kind: Pod\nmetadata:\n\tname: x\n", "line 3, column 1: not YAML: "),
        ("kind: 'Pod\n", "not YAML: "),
        ("kind: Pod\n---\nkind: [\n", "document 2, line 4, column 1: kind: not YAML: "),
        (
            "hello",
            "line 1, column 1: expected a Kubernetes object with apiVersion and kind, found the string \"hello\"",
        ),
        ("- a\n", "expected a Kubernetes object with apiVersion and kind, found a list"),
        ("a: 1\na: 2\n", "line 2, column 1: a: this key is there twice"),
    ] {
        refused(text, &[expected]);
    }
    for empty in ["", " \n\t\n", "---\n", "# nothing\n", "\u{feff}", "null"] {
        refused(empty, &["no objects in it", "kubectl get"]);
    }
    refused(b"kind: Pod\nname: \xff\n".as_slice(), &["line 2: not UTF-8 text (byte 0xff)"]);
    refused(b"\xff\xfek\0i\0".as_slice(), &["looks like UTF-16", "save it as UTF-8"]);
}

#[test]
fn bombs_are_refused_quickly() {
    let deep = |open: &str, close: &str| {
        format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"X\", \"a\": {}1{}}}",
            open.repeat(100_000),
            close.repeat(100_000)
        )
    };
    refused(deep("[", "]"), &["nested deeper than 128 levels"]);
    refused(deep("{\"a\":", "}"), &["nested deeper than 128 levels"]);
    refused("[".repeat(1_000_000), &["found a list"]);
    refused("{\"a\":".repeat(100_000), &["not JSON: EOF"]);
    refused("{a: ".repeat(100_000), &["line 1"]);
    refused("- ".repeat(100_000), &["nested deeper than 128 levels"]);
    refused("? ".repeat(100_000), &["line 1"]);
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..30 {
        laughs = format!("{laughs}a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", "));
    }
    refused(laughs, &["anchors and aliases stand for more than 100000 values"]);
    let flow = format!("{{a: [{}]}}", "1, ".repeat(6_000_000));
    refused(flow, &["larger than 16 MiB in one piece", "block style, or as JSON"]);
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_with_the_next_step() {
    let missing = rouse("explain endpoints -f no/such/file.yaml", "");
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("no/such/file.yaml: no such file: check the path"), "{}", missing.err);
    let directory = rouse("explain slices -f examples", "");
    assert_eq!(directory.code, 2);
    assert!(directory.err.contains("examples is a directory: give a file"), "{}", directory.err);
}

#[test]
fn bad_usage_is_refused_and_help_names_everything() {
    for (arguments, expected) in [
        ("", "Usage: rouse"),
        ("explain", "Usage: rouse explain"),
        ("explain nothing", "nothing"),
        ("explain endpoints -o yaml", "[possible values: text, json]"),
        ("explain slices -o text", "[possible values: yaml, json]"),
        ("explain slices --terminating-conditions=maybe", "[possible values: true, false]"),
    ] {
        let answer = rouse(arguments, "");
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{arguments}: {}", answer.err);
        assert!(answer.err.contains(expected), "{arguments}: {}", answer.err);
    }
    for (arguments, expected) in [
        ("--help", vec!["explain", "--version", "Exit codes"]),
        ("explain --help", vec!["endpoints", "slices"]),
        (
            "explain endpoints --help",
            vec!["--file", "--output", "Examples:", "Draining", "kubectl get", "Exit codes"],
        ),
        (
            "explain slices --help",
            vec![
                "--file",
                "--output",
                "--terminating-conditions",
                "--max-endpoints-per-slice",
                "--diff",
                "Examples:",
                "rouse.dev/selector",
                "Exit codes",
            ],
        ),
        ("--version", vec!["rouse 0.1.0"]),
    ] {
        let answer = rouse(arguments, "");
        assert_eq!(answer.code, 0);
        for expected in expected {
            assert!(answer.out.contains(expected), "{arguments} has no {expected}: {}", answer.out);
        }
    }
}
