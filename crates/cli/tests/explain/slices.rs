//! The output of `rouse explain slices`.

use serde_json::{Value, json};

use crate::{list, rouse, yaml};

fn pod(name: &str, ip: &str, ready: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"), "labels": {"app": "cart", "x": "y"}},
        "spec": {"nodeName": "n"},
        "status": {
            "phase": "Running", "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "cart", "namespace": "shop", "uid": "service-uid"},
        "spec": {"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"], "ports": [{"port": 80}], "selector": {"app": "cart"}},
    })
}

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
}

/// The addresses of each slice.
fn packed(answer: &Value) -> Vec<Vec<String>> {
    let addresses = |slice: &Value| {
        let endpoints = slice["endpoints"].as_array().unwrap();
        endpoints.iter().map(|e| e["addresses"][0].as_str().unwrap().to_owned()).collect()
    };
    answer["items"].as_array().unwrap().iter().map(addresses).collect()
}

#[test]
fn the_shipped_example_becomes_the_slices_that_its_comments_promise() {
    let answer = rouse("explain slices -f examples/pods.yaml -o json", "");
    let json = answer.json();
    assert_eq!(packed(&json), [vec!["10.1.4.1", "10.1.4.2"], vec!["10.1.4.3"], vec!["10.1.4.1", "10.1.4.3"]]);
    let names: Vec<&Value> =
        json["items"].as_array().unwrap().iter().map(|s| &s["metadata"]["name"]).collect();
    assert_eq!(names, ["web-1", "web-2", "batch-1"]);
    let web = &json["items"][0]["metadata"];
    assert_eq!(web["generateName"], "web-");
    assert_eq!(
        web["labels"],
        json!({
            "endpointslice.kubernetes.io/managed-by": "rouse.dev", "kubernetes.io/service-name": "web", "team": "storefront",
        })
    );
    assert_eq!(web["ownerReferences"][0]["uid"], "7c1e9a52-0000-4000-8000-000000000001");
}

#[test]
fn what_is_left_behind_needs_no_further_write_as_json_or_yaml() {
    for format in ["json", "yaml"] {
        let objects =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pods.yaml"))
                .unwrap();
        let slices = rouse(&format!("explain slices -o {format}"), objects.clone()).out;
        let both = if format == "json" {
            format!("{slices}\n---\n{objects}")
        } else {
            format!("{objects}\n---\n{slices}")
        };
        let again = rouse("explain slices --diff", both.clone());
        assert_eq!(
            again.out,
            "shop/web: nothing to write (2 unchanged)\nshop/batch: nothing to write (1 unchanged)\n"
        );
        assert_eq!(rouse(&format!("explain slices -o {format}"), both).out, slices);
    }
}

#[test]
fn a_slice_holds_as_many_endpoints_as_asked() {
    let mut objects: Vec<Value> =
        (1..=5).map(|i| pod(&format!("p{i}"), &format!("10.0.0.{i}"), true)).collect();
    objects.extend([service(), node()]);
    let input = list(objects).to_string();
    let sizes = |arguments: &str| -> Vec<usize> {
        let answer = rouse(&format!("explain slices -o json {arguments}"), input.clone()).json();
        packed(&answer).iter().map(Vec::len).collect()
    };
    assert_eq!(sizes(""), [5]);
    assert_eq!(sizes("--max-endpoints-per-slice=2"), [2, 2, 1]);
    for bad in ["0", "1001", "many"] {
        let answer = rouse(&format!("explain slices --max-endpoints-per-slice={bad}"), "");
        assert_eq!(answer.code, 2);
        assert!(answer.err.contains("expected a whole number from 1 to 1000"), "{}", answer.err);
    }
}

#[test]
fn without_terminating_conditions_leaving_pods_are_left_out() {
    let mut leaving = pod("p2", "10.0.0.2", true);
    leaving["metadata"]["deletionTimestamp"] = "2025-01-01T00:00:00Z".into();
    let input = list(vec![pod("p1", "10.0.0.1", true), leaving, service(), node()]).to_string();
    let on = rouse("explain slices -o json --terminating-conditions=true", input.clone()).json();
    assert_eq!(packed(&on), [["10.0.0.1", "10.0.0.2"]]);
    let off = rouse("explain slices -o json --terminating-conditions=false", input).json();
    assert_eq!(packed(&off), [["10.0.0.1"]]);
    assert_eq!(off["items"][0]["endpoints"][0]["conditions"], json!({"ready": true}));
}

#[test]
fn a_diff_names_what_is_created_updated_and_deleted_field_by_field() {
    let first = list(vec![pod("p1", "10.0.0.1", true), pod("p2", "10.0.0.2", true), service(), node()]);
    let slices = rouse("explain slices -o json", first.to_string()).json();
    let mut slice = slices["items"][0].clone();
    slice["metadata"]["name"] = "cart-abc".into();
    let mut stray = slice.clone();
    stray["metadata"]["name"] = "cart-zzz".into();
    stray["metadata"]["ownerReferences"][0]["uid"] = "an earlier service".into();

    let now =
        vec![pod("p1", "10.0.0.1", false), pod("p3", "10.0.0.3", true), service(), node(), slice, stray];
    let input = list(now).to_string();
    let text = rouse("explain slices --diff", input.clone());
    text.prints(&[
        "shop/cart: update 1, delete 1 (0 unchanged)\n",
        "  ~ update cart-abc\n",
        "      endpoints[10.0.0.1 p1].conditions.ready: true → false\n",
        "      endpoints[10.0.0.1 p1].conditions.serving: true → false\n",
        "      endpoints[10.0.0.2 p2]: {\"addresses\":[\"10.0.0.2\"]",
        "      endpoints[10.0.0.3 p3]: absent → {",
        "  - delete cart-zzz: IPv4, (unnamed) 80/TCP, 2 endpoints\n",
    ]);
    let json = rouse("explain slices --diff -o json", input).json();
    assert_eq!(json["services"][0]["delete"], json!(["cart-zzz"]));
    let change = &json["services"][0]["update"][0]["changes"][0];
    assert_eq!(
        change,
        &json!({"field": "endpoints[10.0.0.1 p1].conditions.ready", "from": true, "to": false})
    );
}

#[test]
fn slices_that_others_manage_are_never_touched_and_their_names_never_taken() {
    let mut foreign =
        rouse("explain slices -o json", list(vec![service(), node()]).to_string()).json()["items"][0].clone();
    foreign["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] =
        "endpointslice-controller.k8s.io".into();
    assert_eq!(foreign["metadata"]["name"], "cart-1");
    let input = list(vec![service(), node(), foreign]).to_string();
    let answer = rouse("explain slices --diff", input);
    assert!(answer.out.contains("+ create cart-2: IPv4, no endpoints (a placeholder)"), "{}", answer.out);
    assert!(!answer.out.contains("delete") && !answer.out.contains("update"), "{}", answer.out);
    let note = "note: managed by endpointslice-controller.k8s.io: 1 EndpointSlice; ignored and not shown";
    assert!(answer.err.contains(note), "{}", answer.err);
}

#[test]
fn a_missing_node_is_a_warning_and_the_rest_is_shown() {
    let answer = rouse("explain slices", list(vec![pod("p", "10.0.0.1", true), service()]).to_string());
    assert_eq!(answer.code, 0);
    let warning =
        "warning: service shop/cart: pod p is left out: node n is not in the input; the rest is shown";
    assert!(answer.err.contains(warning), "{}", answer.err);
}

#[test]
fn the_annotation_selects_pods_of_its_own_namespace_only() {
    let mut annotated = service();
    annotated["spec"]["selector"] = json!(null);
    annotated["metadata"]["annotations"] = json!({"rouse.dev/selector": "app=cart,x=y"});
    let mut elsewhere = pod("p2", "10.0.0.2", true);
    elsewhere["metadata"]["namespace"] = "other".into();
    let mut different = pod("p3", "10.0.0.3", true);
    different["metadata"]["labels"]["x"] = "z".into();
    let objects = vec![pod("p1", "10.0.0.1", true), elsewhere, different, annotated.clone(), node()];
    let answer = rouse("explain slices -o json", yaml(&list(objects))).json();
    assert_eq!(packed(&answer), [["10.0.0.1"]]);

    annotated["metadata"]["annotations"] = json!({"rouse.dev/selector": "app in (a)"});
    let answer = rouse("explain slices", list(vec![annotated]).to_string());
    assert!(answer.err.contains("\"app in (a)\" is not a selector: expected key=value"), "{}", answer.err);
    assert!(answer.out.starts_with("apiVersion: v1\nitems: []\nkind: List\n"), "{}", answer.out);
}
