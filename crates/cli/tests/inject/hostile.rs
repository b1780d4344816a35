//! Annotations that `rouse inject` did not write: a tenant sets them, and the operator applies the output with more rights.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::select;
use rouse_cli::CommandError;
use serde_json::{Value, json};

use super::{POD, app, inject, injected, objects, yaml};

const RECORD: &str = "/metadata/annotations/rouse.dev~1injected";

/// The app with the sidecar, as JSON.
fn with_sidecar(flags: &str) -> Vec<Value> {
    objects(&injected(&yaml(&app()), &format!("-o yaml {flags}")))
}

/// The objects with these steps at the end of the record of one of them: they are undone first.
fn with_record(objects: &[Value], object: usize, more: &[Value]) -> Vec<Value> {
    let mut all = objects.to_vec();
    let record = all[object].pointer_mut(RECORD).unwrap();
    let mut steps: Vec<Value> = serde_json::from_str(record.as_str().unwrap()).unwrap();
    steps.extend_from_slice(more);
    *record = json!(Value::from(steps).to_string());
    all
}

fn restore(path: &str, key: &str, value: &Value) -> Value {
    json!({"restore": {"path": path, "key": key, "place": 0, "value": value}})
}

/// Steps that `rouse inject` never writes: the object (0 is the workload), and the step.
fn hostile_steps() -> Vec<(usize, Value)> {
    let pod = "spec/template/spec";
    let container = "spec/template/spec/containers/[app]";
    let spec = json!({"roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}});
    let probe = json!({"tcpSocket": {"port": 3000}});
    let mut steps = Vec::new();
    for object in [0, 1] {
        steps.extend([
            // Another object, somewhere else.
            (object, restore("", "apiVersion", &json!("rbac.authorization.k8s.io/v1"))),
            (object, restore("", "kind", &json!("ClusterRoleBinding"))),
            (object, restore("/", "kind", &json!("ClusterRoleBinding"))),
            (object, restore("", "metadata", &json!({"name": "coredns", "namespace": "kube-system"}))),
            (object, restore("", "metadata", &Value::Null)),
            (object, restore("", "subjects", &json!([]))),
            (object, restore("", "spec", &spec)),
            (object, restore("metadata", "name", &json!("coredns"))),
            (object, restore("metadata", "namespace", &json!("kube-system"))),
            (object, restore("metadata", "annotations", &json!({"a": "b"}))),
            (object, restore("metadata", "labels", &json!({}))),
            (object, restore("metadata", "ownerReferences", &json!([]))),
            (object, restore("metadata/annotations", "rouse.dev/upstream-tls", &json!("true"))),
            (object, restore("spec", "template", &json!({}))),
            (object, restore("spec", "selector", &json!({}))),
            (object, json!({"remove": {"path": "", "key": "kind"}})),
            (object, json!({"remove": {"path": "metadata", "key": "namespace"}})),
            (object, json!({"remove": {"path": "metadata", "key": "annotations"}})),
            (object, json!({"remove-empty": {"path": "", "key": "status"}})),
            (object, json!({"remove-empty": {"path": "", "key": "metadata"}})),
            (object, json!({"drop": {"path": "metadata/ownerReferences", "name": "x"}})),
        ]);
    }
    // Parts of the pod that the sidecar does not need.
    steps.extend(
        [
            restore(pod, "serviceAccountName", &json!("admin")),
            restore(pod, "hostNetwork", &json!(true)),
            restore(pod, "hostPID", &json!(true)),
            restore(pod, "containers", &json!([{"name": "app", "image": "evil:1"}])),
            restore(pod, "containers", &Value::Null),
            restore(pod, "volumes", &json!([{"name": "node", "hostPath": {"path": "/"}}])),
            restore(pod, "initContainers", &json!([{"name": "x", "image": "evil:1"}])),
            restore("spec/template", "spec", &json!({})),
            restore("spec/template", "metadata", &json!({})),
            restore(container, "image", &json!("evil:1")),
            restore(container, "securityContext", &json!({"privileged": true})),
            restore(container, "lifecycle", &json!({"postStart": {"exec": {"command": ["x"]}}})),
            restore(&format!("{container}/lifecycle"), "preStop", &json!({"exec": {"command": ["x"]}})),
            restore(&format!("{container}/lifecycle"), "postStart", &Value::Null),
            restore(container, "readinessProbe", &json!({"exec": {"command": ["x"]}})),
            restore(container, "readinessProbe", &json!({"httpGet": {"port": 3000, "host": "10.0.0.1"}})),
            restore(container, "readinessProbe", &json!("x")),
            restore(container, "livenessProbe", &probe),
            restore("spec/template/spec/initContainers/[app]", "readinessProbe", &probe),
            restore("spec/template/spec/containers/[]", "readinessProbe", &probe),
            json!({"remove": {"path": pod, "key": "securityContext"}}),
            json!({"remove": {"path": container, "key": "readinessProbe"}}),
            json!({"remove-empty": {"path": pod, "key": "containers"}}),
            json!({"drop": {"path": "spec/template/spec/containers", "name": "app"}}),
            json!({"drop": {"path": "spec/template/spec/volumes", "name": "data"}}),
            json!({"drop": {"path": "spec/template/spec/imagePullSecrets", "name": "rouse-sidecar"}}),
        ]
        .map(|step| (0, step)),
    );
    steps.extend(
        [
            restore("spec", "type", &json!("ExternalName")),
            restore("spec", "externalName", &json!("example.com")),
            restore("spec", "ports", &json!([])),
            restore("spec/ports/[http]", "nodePort", &json!(30000)),
            restore("spec/ports/[http]", "targetPort", &json!({"a": 1})),
            restore("spec/ports/[http]", "targetPort", &Value::Null),
            json!({"remove": {"path": "spec", "key": "selector"}}),
            json!({"remove": {"path": "spec/ports/[]", "key": "port"}}),
            json!({"drop": {"path": "spec/ports", "name": "rouse-sidecar"}}),
            json!({"drop": {"path": "spec/ports", "name": "http"}}),
            restore(container, "readinessProbe", &probe),
        ]
        .map(|step| (1, step)),
    );
    steps
}

#[test]
fn a_step_that_inject_never_writes_is_refused_with_and_without_remove() {
    let original = with_sidecar("");
    for (object, step) in hostile_steps() {
        let input = yaml(&with_record(&original, object, std::slice::from_ref(&step)));
        for flags in ["", "--remove"] {
            let ran = inject(&input, flags);
            let Err(CommandError::Input(said)) = &ran.result else {
                panic!("{flags} {step}: {:?}\n{}", ran.result, ran.out)
            };
            let title = ["Deployment shop/cart: ", "Service shop/cart: "][object];
            assert!(said.starts_with(title), "{said}");
            assert!(said.contains("which rouse inject does not write"), "{flags} {step}: {said}");
            assert!(said.contains("remove the annotation"), "the next step: {said}");
            assert_eq!(ran.out, "", "half of it may be applied");
        }
    }
}

/// A Deployment without the sidecar, whose record makes a `ClusterRoleBinding` of it.
#[test]
fn no_record_makes_another_object_of_a_workload() {
    let [mut workload, mut service] = app();
    let steps = json!([
        restore("", "apiVersion", &json!("rbac.authorization.k8s.io/v1")),
        restore("", "kind", &json!("ClusterRoleBinding")),
        restore("", "metadata", &json!({"name": "owned"})),
        restore("", "roleRef", &json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"})),
        restore("", "subjects", &json!([{"kind": "ServiceAccount", "name": "default", "namespace": "shop"}])),
        {"remove": {"path": "", "key": "spec"}},
    ]);
    workload["metadata"]["annotations"] = json!({"rouse.dev/injected": steps.to_string()});
    service["metadata"]["annotations"] = json!({"rouse.dev/injected": "[]"});
    for flags in ["", "--remove"] {
        let ran = inject(&yaml(&[workload.clone(), service.clone()]), flags);
        assert!(matches!(&ran.result, Err(CommandError::Input(_))), "{flags}: {}", ran.out);
        assert_eq!(ran.out, "");
    }
}

/// The object without the parts that `rouse inject` may change.
fn outside(object: &Value) -> Value {
    let mut object = object.clone();
    let annotations = object["metadata"].as_object_mut().unwrap();
    if let Some(Value::Object(all)) = annotations.get_mut("annotations") {
        all.remove("rouse.dev/injected");
    }
    if annotations.get("annotations").is_some_and(|it| *it == json!({}) || it.is_null()) {
        annotations.remove("annotations");
    }
    if let Some(pod) = object.pointer_mut(POD).and_then(Value::as_object_mut) {
        for (list, ours) in [
            ("containers", "rouse-sidecar"),
            ("initContainers", "rouse-sidecar"),
            ("volumes", "rouse-register"),
        ] {
            if let Some(Value::Array(all)) = pod.get_mut(list) {
                all.retain(|it| it["name"] != ours);
            }
            // An empty list and null mean the same as none.
            if pod.get(list).is_some_and(|it| it.is_null() || *it == json!([])) {
                pod.remove(list);
            }
        }
        for container in pod.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten() {
            let container = container.as_object_mut().unwrap();
            container.remove("readinessProbe");
            if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") {
                lifecycle.remove("preStop");
            }
            if container.get("lifecycle").is_some_and(|it| *it == json!({}) || it.is_null()) {
                container.remove("lifecycle");
            }
        }
    }
    for port in object.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten() {
        port.as_object_mut().unwrap().remove("targetPort");
    }
    object
}

/// Steps of any kind: paths, keys and values that exist, that `inject` writes, and others.
fn steps() -> impl Strategy<Value = Value> {
    let paths = select(vec![
        "",
        "/",
        "metadata",
        "metadata/annotations",
        "spec",
        "spec/template",
        "spec/template/metadata/labels",
        "spec/template/spec",
        "spec/template/spec/",
        "spec/template/spec/containers",
        "spec/template/spec/initContainers",
        "spec/template/spec/volumes",
        "spec/template/spec/containers/[app]",
        "spec/template/spec/containers/[]",
        "spec/template/spec/containers/[rouse-sidecar]",
        "spec/template/spec/containers/[app]/lifecycle",
        "spec/ports",
        "spec/ports/[]",
        "spec/ports/[http]",
    ]);
    let keys = select(vec![
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "name",
        "namespace",
        "annotations",
        "labels",
        "template",
        "selector",
        "containers",
        "initContainers",
        "volumes",
        "readinessProbe",
        "lifecycle",
        "preStop",
        "image",
        "serviceAccountName",
        "targetPort",
        "port",
        "ports",
        "type",
        "app",
    ]);
    let values = select(vec![
        json!(null),
        json!("x"),
        json!(1),
        json!([]),
        json!({}),
        json!({"name": "x", "namespace": "kube-system"}),
        json!({"tcpSocket": {"port": 3000}}),
        json!({"exec": {"command": ["x"]}}),
        json!([{"name": "x"}]),
    ]);
    let names = select(vec!["app", "rouse-sidecar", "rouse-register", "http", ""]);
    (paths, keys, values, names, 0..4).prop_map(|(path, key, value, name, kind)| match kind {
        0 => restore(path, key, &value),
        1 => json!({"remove": {"path": path, "key": key}}),
        2 => json!({"remove-empty": {"path": path, "key": key}}),
        _ => json!({"drop": {"path": path, "name": name}}),
    })
}

/// Steps that `inject` writes in some run, in any order and number.
fn own_steps() -> impl Strategy<Value = (usize, Value)> {
    let container = "spec/template/spec/containers/[app]";
    let probe = json!({"tcpSocket": {"port": 3000}});
    select(vec![
        (0, json!({"drop": {"path": "spec/template/spec/containers", "name": "rouse-sidecar"}})),
        (0, json!({"drop": {"path": "spec/template/spec/volumes", "name": "rouse-register"}})),
        (0, json!({"remove": {"path": format!("{container}/lifecycle"), "key": "preStop"}})),
        (0, json!({"remove-empty": {"path": container, "key": "lifecycle"}})),
        (0, json!({"remove-empty": {"path": "spec/template/spec", "key": "volumes"}})),
        (0, restore("spec/template/spec", "volumes", &Value::Null)),
        (0, restore(container, "lifecycle", &Value::Null)),
        (0, restore(container, "readinessProbe", &probe)),
        (0, restore("metadata", "annotations", &Value::Null)),
        (1, json!({"remove-empty": {"path": "metadata", "key": "annotations"}})),
        (1, restore("metadata", "annotations", &Value::Null)),
        (1, restore("spec/ports/[http]", "targetPort", &json!(9))),
        (1, json!({"remove": {"path": "spec/ports/[]", "key": "targetPort"}})),
    ])
}

static PLAIN: LazyLock<Vec<Value>> = LazyLock::new(|| with_sidecar(""));
static NATIVE: LazyLock<Vec<Value>> = LazyLock::new(|| with_sidecar("--native"));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn whatever_a_record_says_only_what_inject_changes_can_change(
        own in proptest::collection::vec(own_steps(), 0..4),
        any in proptest::collection::vec((0_usize..2, steps()), 0..2),
        keep in any::<bool>(),
        native in any::<bool>(),
        remove in any::<bool>(),
    ) {
        let mut all = if native { NATIVE.clone() } else { PLAIN.clone() };
        all[0]["metadata"]["annotations"]["later"] = json!("1");
        for object in [0, 1] {
            if !keep {
                *all[object].pointer_mut(RECORD).unwrap() = json!("[]");
            }
            let steps: Vec<Value> =
                own.iter().chain(&any).filter(|(of, _)| *of == object).map(|(_, step)| step.clone()).collect();
            all = with_record(&all, object, &steps);
        }
        let ran = inject(&yaml(&all), if remove { "--remove -o yaml" } else { "-o yaml" });
        match ran.result {
            Ok(()) => {
                let after = objects(&ran.out);
                prop_assert_eq!(after.len(), all.len());
                for (before, after) in all.iter().zip(&after) {
                    prop_assert_eq!(outside(before), outside(after));
                }
            }
            Err(CommandError::Input(_)) => prop_assert_eq!(ran.out, ""),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
