//! The input of `rouse explain`: accepted formats, and the errors for invalid input.

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
        answer.complains(&[
            "warning: skipped 3 objects of kind Odd (example.com/v1); only EndpointSlice, Service are read\n",
            "warning: skipped 1 object of kind AllowList (example.com/v1)",
            "warning: skipped 1 object of kind Service (serving.knative.dev/v1)",
            "warning: skipped 1 object of kind Pod (v1)",
        ]);
        assert_eq!(answer.err.lines().count(), 4, "{}", answer.err);
    }
    // Also alone, where a field `items` would make it look like a list.
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
    answer.complains(expected);
    assert!(answer.err.starts_with("error: <stdin>"), "{}", answer.err);
    assert!(answer.err.len() < 500, "too long: {}", answer.err);
}

#[test]
fn malformed_objects_are_refused_with_document_line_and_field() {
    // The change of SLICE, the place of the error in JSON, and the error's text for JSON and YAML.
    for (from, to, place, said) in [
        (r#""kind": "EndpointSlice","#, "", "line 1, column 1", "kind: missing"),
        (r#""apiVersion": "discovery.k8s.io/v1","#, "", "line 1, column 1", "apiVersion: missing"),
        (r#""EndpointSlice""#, "7", "line 2, column 48", "kind: expected a string, found the number 7"),
        (r#""name": "a", "#, "", "line 3, column 15", "metadata.name: missing"),
        (
            r#""a""#,
            "5",
            "line 3, column 24",
            "metadata.name: expected a string, found the number 5 (put it in quotes)",
        ),
        (
            r#"{"kubernetes.io/service-name": "cart"}"#,
            "[]",
            "line 3",
            "metadata.labels: expected an object, found a list",
        ),
        (
            r#""cart""#,
            "true",
            "line 3",
            r#"labels["kubernetes.io/service-name"]: expected a string, found true"#,
        ),
        (r#""addressType": "IPv4","#, "", "line 1, column 1", "addressType: missing"),
        (
            r#""IPv4""#,
            r#""X""#,
            "line 4, column 18",
            r#"addressType: expected one of IPv4, IPv6, FQDN, found "X""#,
        ),
        (r#"[{"addresses": ["10.0.0.1"]}]"#, "{}", "line 4", "endpoints: expected a list, found an object"),
        (r#"{"addresses": ["10.0.0.1"]}"#, "{}", "line 4, column 40", "endpoints[0].addresses: missing"),
        (
            r#"{"addresses": ["10.0.0.1"]}"#,
            "[]",
            "line 4",
            "endpoints[0]: expected an endpoint: an object with addresses",
        ),
        (
            r#""10.0.0.1""#,
            "10",
            "line 4",
            "endpoints[0].addresses[0]: expected a string, found the number 10",
        ),
        (
            r#"1"]}"#,
            r#"1"], "conditions": {"ready": "yes"}}"#,
            "line 4",
            "conditions.ready: expected true or false, found the string",
        ),
        (
            r#"1"]}"#,
            r#"1"], "conditions": []}"#,
            "line 4",
            "endpoints[0].conditions: expected an object with ready",
        ),
        ("80", r#""http""#, "line 4", r#"ports[0].port: expected a whole number, found the string "http""#),
        (
            "80",
            "65536",
            "line 4",
            "ports[0].port: expected a port number from 1 to 65535, found integer `65536`",
        ),
        ("80", "0", "line 4", "ports[0].port: expected a port number from 1 to 65535, found integer `0`"),
    ] {
        assert!(SLICE.contains(from), "{from}");
        let bad = SLICE.replace(from, to);
        refused(bad.clone(), &["document 1", place, said]);
        refused(format!("{SLICE}\n{bad}"), &["document 2", said]);
        let (good, bad) = (serde_json::from_str(SLICE).unwrap(), serde_json::from_str(&bad).unwrap());
        refused(format!("{}---\n{}", yaml(&good), yaml(&bad)), &["document 2, line ", said]);
    }
}

#[test]
fn a_key_that_is_there_twice_is_refused_wherever_it_is() {
    let twice = SLICE.replace("\"port\": 80", "\"port\": 80, \"port\": 81");
    refused(twice, &["line 4", "ports[0].port: this key appears twice"]);
    let unread = SLICE.replace("\"endpoints\":", "\"x\": {\"y\": 1, \"y\": 2}, \"endpoints\":");
    refused(unread, &["line 4", "x.y: this key appears twice"]);
    refused("a:\n  b: 1\n  c: 2\n  b: 3\n", &["line 4, column 3: a.b: this key appears twice"]);
    let many: Vec<String> = (0..1000).map(|i| format!("k{}: 1\n", i % 999)).collect();
    refused(many.concat(), &["line 1000, column 1: k0: this key appears twice"]);
    refused(r#"{"kind": "List", "items": [], "items": []}"#, &["items: this key appears twice"]);
    refused("kind: List\nitems: []\nitems: []\n", &["line 3, column 1: items: this key appears twice"]);
}

#[test]
fn an_item_of_a_list_is_named_by_its_index() {
    let good: serde_json::Value = serde_json::from_str(SLICE).unwrap();
    let mut bad = good.clone();
    bad["ports"] = json!("http");
    let objects = list(vec![good.clone(), good, bad]);
    let expected = "items[2].ports: expected a list, found the string \"http\"";
    refused(serde_json::to_string_pretty(&objects).unwrap(), &["document 1, line 72, column 16", expected]);
    refused(yaml(&objects), &["document 1, line 42, column 10", expected]);
    refused(
        list(vec![json!(3)]).to_string(),
        &["items[0]: expected a Kubernetes object with apiVersion and kind, found the number 3"],
    );
    refused(r#"{"apiVersion": "v1", "kind": "List"}"#, &["items: missing"]);
    refused(
        r#"{"apiVersion": "v1", "kind": "List", "items": 3}"#,
        &["items: expected a list, found the number 3"],
    );
}

#[test]
fn text_that_is_no_json_or_yaml_is_refused_with_its_line() {
    for (text, expected) in [
        (
            "{\"apiVersion\": \"v1\",\n \"kind\": \"Pod\",\n",
            "document 1, line 3, column 1: not JSON: EOF while parsing",
        ),
        ("{\"a\": 1,\n \"b\" 2}", "line 2, column 6: not JSON: expected `:`"),
        (
            "{\"apiVersion\": \"v1\", \"kind\": \"X\"} x",
            "line 1, column 35: not JSON: only another object may follow",
        ),
        ("{\"a\": \"\\ud800\"}", "a: not JSON: "),
        (
            "[{\"kind\": \"Pod\"}]",
            "expected an object with apiVersion and kind, found a list: take the objects out",
        ),
        ("kind: Pod\n  apiVersion: v1\n", "line 2, column 13: not YAML: "),
        ("kind: Pod\nmetadata:\n\tname: x\n", "line 3, column 2: metadata: not YAML: tabs disallowed"),
        ("kind: 'Pod\n", "not YAML: "),
        ("apiVersion: v1\nkind: Pod\n---\nkind: [\n", "document 2, line 5, column 1: kind: not YAML: "),
        (
            "hello",
            "line 1, column 1: expected a Kubernetes object with apiVersion and kind, found the string \"hello\"",
        ),
        ("- a\n", "expected a Kubernetes object with apiVersion and kind, found a list"),
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
    refused(flow, &["larger than 16 MiB", "block style, or as JSON"]);
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
