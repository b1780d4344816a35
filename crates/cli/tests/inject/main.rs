//! `rouse inject`: what it adds, that `--remove` gives back the original, and what it refuses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests, also in their helpers"
)]

mod hostile;
mod round_trip;

use std::fmt::Write as _;

use anstream::StripStream;
use clap::Parser as _;
use rouse_cli::args::Rouse;
use rouse_cli::{CommandError, Streams};
use rouse_config::document::from_node;
use rouse_config::document::yaml::Reader;
use serde_json::{Value, json};

/// The result and the output.
pub(crate) struct Ran {
    result: Result<(), CommandError>,
    out: String,
    err: String,
}

/// `rouse inject -f -` with these flags.
pub(crate) fn inject(input: &str, flags: &str) -> Ran {
    let flags = flags.split_whitespace();
    let rouse = Rouse::try_parse_from(["rouse", "inject", "-f", "-"].into_iter().chain(flags)).unwrap();
    let (mut out, mut err) = (Vec::new(), StripStream::new(Vec::new()));
    let streams = &mut Streams { stdin: &mut input.as_bytes(), out: &mut out, err: &mut err };
    let result = rouse_cli::run(&rouse, streams);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { result, out: text(out), err: text(err.into_inner()) }
}

/// The output, which must come.
pub(crate) fn injected(input: &str, flags: &str) -> String {
    let ran = inject(input, flags);
    ran.result.unwrap_or_else(|error| panic!("{flags}: {error}\n{input}"));
    ran.out
}

pub(crate) fn objects(text: &str) -> Vec<Value> {
    let mut reader = Reader::new(text, 1);
    let mut all = Vec::new();
    while reader.next_document().unwrap() {
        all.push(from_node(reader.node().unwrap()).unwrap());
    }
    all
}

pub(crate) fn yaml(objects: &[Value]) -> String {
    objects.iter().fold(String::new(), |mut text, object| {
        write!(text, "---\n{object}\n").unwrap();
        text
    })
}

/// A workload with one container, and its Service.
pub(crate) fn app() -> [Value; 2] {
    let container = json!({
        "name": "app", "image": "cart:1", "ports": [{"name": "web", "containerPort": 3000}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}, "periodSeconds": 5, "initialDelaySeconds": 3},
    });
    let workload = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "cart", "namespace": "shop"},
        "spec": {"template": {"metadata": {"labels": {"app": "cart"}}, "spec": {"containers": [container]}}},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart", "namespace": "shop"},
        "spec": {"selector": {"app": "cart"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]},
    });
    [workload, service]
}

const POD: &str = "/spec/template/spec";
const APP: &str = "/spec/template/spec/containers/0";
const PORTS: &str = "/spec/ports";

/// The app after changes: which object, where, and the new value.
fn changed(changes: &[(usize, &str, Value)]) -> Vec<Value> {
    let mut all = app().to_vec();
    for (object, at, value) in changes {
        let (parent, key) = at.rsplit_once('/').unwrap();
        let parent = all[*object].pointer_mut(parent).unwrap();
        parent.as_object_mut().unwrap().insert(key.replace("~1", "/"), value.clone());
    }
    all
}

fn sidecar(objects: &[Value], list: &str) -> Value {
    let containers = objects[0].pointer(&format!("{POD}/{list}")).unwrap().as_array().unwrap();
    containers.iter().find(|it| it["name"] == "rouse-sidecar").unwrap().clone()
}

fn flags(sidecar: &Value) -> Vec<&str> {
    sidecar["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

#[test]
fn the_pod_gets_a_sidecar_with_its_token_its_hooks_and_the_probe_of_the_app() {
    for (more, list) in [("", "containers"), ("--native", "initContainers")] {
        let all = objects(&injected(&yaml(&app()), &format!("{more} --drain-secret 0123456789abcdef")));
        let sidecar = sidecar(&all, list);
        assert_eq!(sidecar.get("restartPolicy"), (list == "initContainers").then_some(&json!("Always")));
        let expected = [
            "sidecar",
            "--listen=0.0.0.0:8012",
            "--admin=0.0.0.0:8022",
            "--app=127.0.0.1:3000",
            "--app-protocol=http1",
            "--probe=http:/ready",
            "--grace-period=30s",
            "--service=cart",
            "--port=http=8012",
            "--register-namespace=rouse-system",
            "--register-token=/var/run/secrets/rouse/token",
            "--register-ca=/var/run/secrets/rouse/ca.crt",
        ];
        assert_eq!(flags(&sidecar), expected);
        let header = json!([{"name": "X-Rouse-Drain-Secret", "value": "0123456789abcdef"}]);
        let hook = |path: &str| json!({"httpGet": {"path": path, "port": 8022, "httpHeaders": header}});
        assert_eq!(sidecar["lifecycle"]["preStop"], hook("/drain"));
        let app = all[0].pointer(APP).unwrap();
        assert_eq!(app["lifecycle"]["preStop"], hook("/wait-for-drain"));
        assert_eq!(app.get("readinessProbe"), None, "the sidecar has it now");
        let probe = json!({"httpGet": {"path": "/healthz", "port": 8022}, "periodSeconds": 5});
        assert_eq!(sidecar["readinessProbe"], probe);
        let sources = all[0].pointer(&format!("{POD}/volumes/0/projected/sources")).unwrap();
        let token = json!({"audience": "rouse-register", "expirationSeconds": 3600, "path": "token"});
        assert_eq!(sources[0]["serviceAccountToken"], token);
        assert_eq!(sources[1]["configMap"]["name"], "rouse-ca");
        let fields: Vec<&Value> = sidecar["env"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| &it["valueFrom"]["fieldRef"]["fieldPath"])
            .collect();
        assert_eq!(fields[..4], ["metadata.name", "metadata.namespace", "metadata.uid", "status.podIPs"]);
        assert_eq!(all[1].pointer(&format!("{PORTS}/0/targetPort")), Some(&json!(8012)));
    }
}

#[test]
fn flags_of_the_operator_reach_the_sidecar() {
    let h2c = changed(&[(1, "/spec/ports/0/appProtocol", json!("kubernetes.io/h2c"))]);
    let given = "--gateway-namespace edge --concurrency 7 --sidecar-port 7000 --admin-port 7001 --ip-family ipv6 \
                 --ca-configmap my-ca --token-lifetime 10m --image r.example.com/rouse:9 --probe grpc:cart";
    let all = objects(&injected(&yaml(&h2c), given));
    let sidecar = sidecar(&all, "containers");
    for expected in [
        "--listen=[::]:7000",
        "--admin=[::]:7001",
        "--app=[::1]:3000",
        "--app-protocol=h2c",
        "--concurrency=7",
        "--register-namespace=edge",
        "--probe=grpc:cart",
        "--port=http=7000",
    ] {
        assert!(flags(&sidecar).contains(&expected), "{expected}: {sidecar}");
    }
    assert_eq!(sidecar["image"], "r.example.com/rouse:9");
    assert!(all[0].pointer(&format!("{APP}/readinessProbe")).is_some(), "another probe is not taken over");
    let url = injected(&yaml(&app()), "--register https://gateways.example.com:9443");
    assert!(
        url.contains("--register=https://gateways.example.com:9443") && !url.contains("register-namespace")
    );
}

/// The probe of the app, the flags, and the probe of the sidecar.
#[test]
fn the_sidecar_asks_the_app_what_its_probe_asks() {
    for (probe, flags_given, expected, taken) in [
        (json!(null), "", "--probe=tcp", false),
        (json!({"tcpSocket": {"port": 3000}}), "", "--probe=tcp", true),
        (json!({"grpc": {"port": 3000}}), "", "--probe=grpc:", true),
        (json!({"grpc": {"port": 3000, "service": "cart"}}), "", "--probe=grpc:cart", true),
        (json!({"httpGet": {"port": 3000}}), "", "--probe=http:/", true),
        (json!({"httpGet": {"port": 3000, "path": "x", "scheme": "HTTP"}}), "", "--probe=http:/x", true),
        (json!({"httpGet": {"port": 3000, "path": "/x"}}), "--probe http:/x", "--probe=http:/x", true),
        (json!({"exec": {"command": ["true"]}}), "--probe tcp", "--probe=tcp", false),
    ] {
        let input = changed(&[(0, &format!("{APP}/readinessProbe"), probe.clone())]);
        let all = objects(&injected(&yaml(&input), flags_given));
        assert!(flags(&sidecar(&all, "containers")).contains(&expected), "{probe}");
        let left = all[0].pointer(&format!("{APP}/readinessProbe"));
        assert_eq!(left.is_none(), taken, "{probe}");
    }
}

#[test]
fn an_app_keeps_its_own_pre_stop_hook_and_that_is_said() {
    let own = json!({"preStop": {"exec": {"command": ["sleep", "5"]}}});
    let input = changed(&[(0, &format!("{APP}/lifecycle"), own.clone())]);
    let ran = inject(&yaml(&input), "");
    assert_eq!(objects(&ran.out)[0].pointer(&format!("{APP}/lifecycle")), Some(&own));
    assert!(
        ran.err.contains("Deployment shop/cart: container app keeps its own preStop hook"),
        "{}",
        ran.err
    );
    let hook = "GET http://127.0.0.1:8022/wait-for-drain with the header X-Rouse-Drain-Secret, whose value is that of the variable \
                ROUSE_DRAIN_SECRET of container rouse-sidecar";
    assert!(ran.err.contains(hook), "{}", ran.err);
    let sidecar = sidecar(&objects(&ran.out), "containers");
    assert!(sidecar["env"].as_array().unwrap().iter().any(|it| it["name"] == "ROUSE_DRAIN_SECRET"));
    let started = json!({"postStart": {"exec": {"command": ["true"]}}});
    let input = changed(&[(0, &format!("{APP}/lifecycle"), started.clone())]);
    let ran = inject(&yaml(&input), "");
    let lifecycle = objects(&ran.out)[0].pointer(&format!("{APP}/lifecycle")).unwrap().clone();
    assert!(lifecycle["postStart"] == started["postStart"] && lifecycle.get("preStop").is_some());
    assert_eq!(ran.err, "");
}

#[test]
fn a_pod_is_not_reported_ready_before_the_probes_of_its_other_containers_succeed() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let second = json!({"name": "second", "image": "second:1", "readinessProbe": probe});
    let [workload, service] = app();
    for list in ["containers", "initContainers"] {
        let mut both = workload.clone();
        let pod = both.pointer_mut(POD).unwrap().as_object_mut().unwrap();
        pod.entry(list).or_insert(json!([])).as_array_mut().unwrap().push(second.clone());
        let input = yaml(&[both, service.clone()]);
        let ran = inject(&input, "");
        let Err(CommandError::Input(said)) = ran.result else { panic!("{list}: {}", ran.out) };
        let expected = "Deployment shop/cart: the sidecar does not run the readinessProbe of second";
        assert!(said.contains(expected) && said.contains("--probe"), "{said}");
        // The operator takes the decision, and the container keeps its probe.
        let ran = inject(&input, "--probe http:/all");
        assert!(
            ran.err
                .contains("the sidecar does not run the readinessProbe of second; its own probe (http:/all)"),
            "{}",
            ran.err
        );
        let all = objects(&ran.out);
        let kept = all[0].pointer(&format!("{POD}/{list}")).unwrap().as_array().unwrap().clone();
        assert!(kept.contains(&second), "{kept:?}");
        assert!(flags(&sidecar(&all, "containers")).contains(&"--probe=http:/all"));
    }
}

#[test]
fn a_service_selects_pods_by_the_annotation_as_in_the_gateway() {
    let labels = |selector: &str| {
        changed(&[
            (1, "/spec/selector", json!({})),
            (1, "/metadata/annotations", json!({"rouse.dev/selector": selector})),
        ])
    };
    for selector in ["app=cart", "app==cart", " app = cart "] {
        injected(&yaml(&labels(selector)), "");
    }
    for selector in ["", "app=other", "app=cart,app=cart", "app=cart,", "app=cart,tier=web", "app in (cart)"]
    {
        let ran = inject(&yaml(&labels(selector)), "");
        assert!(ran.result.is_err(), "{selector}: {}", ran.out);
    }
}

#[test]
fn ports_that_lead_elsewhere_are_registered_and_left_as_they_are() {
    let ports = json!([
        {"name": "http", "port": 80, "targetPort": "web"},
        {"name": "old", "port": 8080, "targetPort": 3000},
        {"name": "metrics", "port": 9090},
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "gone", "port": 1, "targetPort": "nothing"},
    ]);
    let ran = inject(&yaml(&changed(&[(1, PORTS, ports)])), "");
    let all = objects(&ran.out);
    let targets: Vec<Value> = all[1]
        .pointer(PORTS)
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["targetPort"].clone())
        .collect();
    assert_eq!(targets, [json!(8012), json!(8012), Value::Null, Value::Null, json!("nothing")]);
    let sidecar = sidecar(&all, "containers");
    let registered: Vec<&str> =
        flags(&sidecar).into_iter().filter_map(|it| it.strip_prefix("--port=")).collect();
    assert_eq!(registered, ["http=8012", "old=8012", "metrics=9090"]);
    assert!(ran.err.contains("its ports metrics still bypass the sidecar"), "{}", ran.err);
}

#[test]
fn a_list_and_json_are_read_and_other_objects_are_passed_on() {
    let other =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1\n2"}});
    let [workload, service] = app();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [other, workload, service]});
    let out = injected(&list.to_string(), "--drain-secret 0123456789abcdef");
    let values: Vec<Value> =
        serde_json::Deserializer::from_str(&out).into_iter().map(Result::unwrap).collect();
    assert_eq!((values.len(), &values[0]), (3, &other));
    let plain = injected(&yaml(&[other, workload, service]), "--drain-secret 0123456789abcdef -o yaml");
    assert_eq!(values, objects(&plain));
}

#[test]
fn only_the_workloads_that_are_named_are_changed() {
    let [workload, service] = app();
    let mut worker = workload.clone();
    worker["metadata"]["name"] = json!("worker");
    worker["spec"]["template"]["metadata"]["labels"] = json!({"app": "worker"});
    let all = objects(&injected(&yaml(&[workload, service, worker.clone()]), "--workload cart"));
    assert_eq!(all[2], worker);
    assert!(all[0].pointer("/metadata/annotations").is_some());
}

#[test]
fn a_service_without_the_sidecar_is_told_when_another_one_is_chosen() {
    let [workload, service] = app();
    let mut second = service.clone();
    second["metadata"]["name"] = json!("cart-internal");
    let ran = inject(&yaml(&[workload, service, second.clone()]), "--service cart");
    assert_eq!(objects(&ran.out)[2], second);
    assert!(
        ran.err.contains("requests to Service shop/cart-internal do not go through the sidecar"),
        "{}",
        ran.err
    );
}

/// Changes to the app, flags, and what the error says.
/// A change of one of the two objects of [`app`]: which, where, and the new value.
type Change = (usize, &'static str, Value);

#[test]
fn what_would_not_work_is_refused() {
    let probe = |value: Value| vec![(0, "/spec/template/spec/containers/0/readinessProbe", value)];
    let get = |more: Value| {
        let mut get = json!({"port": 3000, "path": "/"});
        get.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "httpGet": get })
    };
    let two =
        json!([{"name": "a", "port": 1, "targetPort": 3000}, {"name": "b", "port": 2, "targetPort": 4000}]);
    let containers = json!([{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]);
    let cases: Vec<(Vec<Change>, &str, &str)> = vec![
        (
            vec![(1, "/spec/selector", json!({"app": "other"}))],
            "",
            "Deployment shop/cart: the Service that selects its pods is not in the file: add the Service in namespace shop whose selector matches the labels app=cart",
        ),
        (vec![(1, "/metadata/namespace", json!("other"))], "", "is not in the file"),
        (vec![(1, "/spec/type", json!("ExternalName"))], "", "is not in the file"),
        (vec![], "--service other", "none of its Services (cart) is named by --service"),
        (
            vec![],
            "--workload other",
            "--workload other: the file has no Deployment, StatefulSet, DaemonSet of this name",
        ),
        (vec![(0, "/kind", json!("Job"))], "", "no workload is in the file"),
        (vec![(1, PORTS, two)], "", "Service shop/cart: it has several ports (a, b)"),
        (vec![], "--port grpc", "--port grpc: it has no TCP port"),
        (vec![(1, PORTS, json!([{"port": 80, "targetPort": "x"}]))], "", "none of its target ports"),
        (vec![(1, "/spec/ports/0/appProtocol", json!("https"))], "", "its pods speak TLS"),
        (
            vec![(1, "/metadata/annotations", json!({"rouse.dev/upstream-tls": "true"}))],
            "",
            "its pods speak TLS",
        ),
        (
            vec![(0, "/spec/template/spec/containers", containers), (1, PORTS, json!([{"port": 80}]))],
            "",
            "none declares the port 80",
        ),
        (vec![(0, "/spec/template/spec/containers", json!([]))], "", "none of its target ports"),
        (vec![(0, "/spec/template/spec/hostNetwork", json!(true))], "", "hostNetwork"),
        (
            vec![(0, "/spec/template/spec/volumes", json!([{"name": "rouse-register"}]))],
            "",
            "volumes already has rouse-register, which rouse inject did not add",
        ),
        (
            vec![(0, "/spec/template/spec/initContainers", json!([{"name": "rouse-sidecar"}]))],
            "",
            "initContainers already has rouse-sidecar",
        ),
        (
            vec![],
            "--sidecar-port 3000",
            "a container has the port 3000: choose another one with --sidecar-port",
        ),
        (vec![], "--sidecar-port 1 --admin-port 1", "choose two ports"),
        (
            vec![(0, "/spec/template/spec/readinessGates", json!([{"conditionType": "example.com/lb"}]))],
            "--probe tcp",
            "its pods have readinessGates, and the sidecar sees only the app",
        ),
        (probe(json!({"exec": {"command": ["x"]}})), "", "it runs a command (exec)"),
        (probe(get(json!({"port": 1}))), "", "it checks a port other than 3000"),
        (probe(get(json!({"scheme": "HTTPS"}))), "", "it uses HTTPS"),
        (probe(get(json!({"host": "x"}))), "", "it has host"),
        (probe(get(json!({"httpHeaders": [{"name": "a", "value": "b"}]}))), "", "it has httpHeaders"),
        (
            vec![(0, "/metadata/annotations", json!({"rouse.dev/injected": "x"}))],
            "",
            "the annotation rouse.dev/injected cannot be read",
        ),
    ];
    for (changes, flags, expected) in cases {
        let ran = inject(&yaml(&changed(&changes)), flags);
        let Err(CommandError::Input(said)) = ran.result else { panic!("{expected}: {}", ran.out) };
        assert!(said.contains(expected), "{said:?} does not say {expected:?}");
        assert_eq!(ran.out, "", "half of it may be applied");
    }
    let [workload, service] = app();
    let missing = inject(&yaml(std::slice::from_ref(&workload)), "");
    assert!(
        matches!(missing.result, Err(CommandError::Input(said)) if said.contains("the Service that selects its pods is not in the file"))
    );
    let mut second = service.clone();
    second["metadata"]["name"] = json!("cart-2");
    let several = inject(&yaml(&[workload, service, second]), "");
    assert!(
        matches!(several.result, Err(CommandError::Input(said)) if said.contains("several Services select its pods (cart, cart-2)"))
    );
}
