//! `--remove` gives back the original, in the original order, and a second run changes nothing: for generated manifests.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::{app, inject, injected, objects, yaml};
use rouse_cli::CommandError;

/// The input as `rouse inject` prints it: without comments and in its layout.
fn printed(input: &str) -> String {
    injected(input, "--remove -o yaml")
}

/// Members that a container, a pod or an object may have, also empty ones.
fn manifests() -> impl Strategy<Value = Vec<Value>> {
    let probes = select(vec![
        json!(null),
        json!({"tcpSocket": {"port": 3000}, "periodSeconds": 1}),
        json!({"httpGet": {"path": "/a", "port": 3000, "httpHeaders": []}, "failureThreshold": 9}),
    ]);
    let lifecycles = select(vec![
        json!(null),
        json!({}),
        json!({"preStop": {"exec": {"command": ["x"]}}}),
        json!({"preStop": null, "postStart": {}}),
    ]);
    let lists = select(vec![None, Some(json!(null)), Some(json!([])), Some(json!([{"name": "own"}]))]);
    let annotations =
        select(vec![None, Some(json!(null)), Some(json!({})), Some(json!({"z": "1", "a": "2"}))]);
    let targets = select(vec![None, Some(json!(3000)), Some(json!("web"))]);
    let all = (probes, lifecycles, lists.clone(), lists, annotations.clone(), annotations, targets);
    all.prop_map(|(probe, lifecycle, volumes, init, of_workload, of_service, target)| {
        let [mut workload, mut service] = app();
        let pod = &mut workload["spec"]["template"]["spec"];
        for (key, value) in [("readinessProbe", probe), ("lifecycle", lifecycle)] {
            pod["containers"][0][key] = value;
        }
        for (key, value) in [("volumes", volumes), ("initContainers", init)] {
            if let Some(value) = value {
                pod[key] = value;
            }
        }
        if let Some(value) = of_workload {
            workload["metadata"]["annotations"] = value;
        }
        if let Some(value) = of_service {
            service["metadata"]["annotations"] = value;
        }
        let port = service["spec"]["ports"][0].as_object_mut().unwrap();
        port.insert("port".to_owned(), json!(3000));
        port.remove("targetPort");
        if let Some(target) = target {
            port.insert("targetPort".to_owned(), target);
        }
        vec![service, workload]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn removal_restores_the_original_and_a_second_run_changes_nothing(
        original in manifests(),
        native in any::<bool>(),
        other in any::<bool>(),
    ) {
        let text = yaml(&original);
        let flags = if native { "--native -o yaml" } else { "-o yaml" };
        let once = injected(&text, flags);
        prop_assert_ne!(&once, &printed(&text));
        prop_assert_eq!(&injected(&once, flags), &once, "idempotent, with the secret that is there");
        let others = if other { "--native -o yaml --sidecar-port 1" } else { "-o yaml --concurrency 3" };
        for injected_text in [once.clone(), injected(&once, others)] {
            let back = injected(&injected_text, "--remove -o yaml");
            prop_assert_eq!(&back, &printed(&text), "byte for byte");
            prop_assert_eq!(objects(&back), original.clone());
        }
    }
}

#[test]
fn the_order_of_keys_survives() {
    let text = "kind: Deployment\napiVersion: apps/v1\nmetadata:\n  name: cart\nspec:\n  template:\n    spec:\n      zebra: 1\n      containers:\n\
                \x20     - readinessProbe:\n          tcpSocket:\n            port: 80\n          periodSeconds: 3\n        name: app\n    metadata:\n      labels:\n        b: x\n        a: w\n\
                ---\nkind: Service\nspec:\n  ports:\n  - targetPort: 80\n    port: 80\n  selector:\n    b: x\nmetadata:\n  name: cart\napiVersion: v1\n";
    assert_eq!(printed(text), text);
    assert_eq!(injected(&injected(text, ""), "--remove"), text);
}

#[test]
fn annotations_that_came_later_stay() {
    let mut all = objects(&injected(&yaml(&app()), "-o yaml"));
    all[0]["metadata"]["annotations"]["later"] = json!("1");
    let back = objects(&injected(&yaml(&all), "--remove -o yaml"));
    let [mut expected, _] = app();
    expected["metadata"]["annotations"] = json!({"later": "1"});
    assert_eq!(back[0], expected);
}

#[test]
fn what_was_injected_is_taken_out_together() {
    let all = objects(&injected(&yaml(&app()), "-o yaml"));
    let refused = |objects: &[Value], flags: &str, expected: &str| {
        let ran = inject(&yaml(objects), flags);
        assert!(
            matches!(&ran.result, Err(CommandError::Input(said)) if said.contains(expected)),
            "{:?}",
            ran.result
        );
    };
    refused(&all[..1], "--remove", "the Service that selects its pods is not in the file");
    refused(&all[1..], "--remove", "no injected workload that it selects is in the file");
    refused(&all[1..], "", "no workload is in the file");
    let mut gone = all.clone();
    gone[0]["spec"]["template"]["spec"]["containers"][0]["name"] = json!("renamed");
    refused(&gone, "--remove", "which is not there any more");
    let ran = inject(&yaml(&app()), "--remove -o yaml");
    assert!(ran.err.contains("nothing to remove"), "{}", ran.err);
    assert_eq!(objects(&ran.out), app());
}
