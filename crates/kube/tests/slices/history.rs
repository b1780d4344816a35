//! Random histories of Services, pods, other clients and faults: in the end, the slices are those that a naive model expects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use proptest::prelude::*;
use rouse_core::slices::MaxEndpoints;
use serde_json::{Value, json};

use crate::rig::{Rig, SLICES, edit, leaving, node, pass, pod, pod_names, service, unready};
use rouse_testkit::api_server::{ApiServer, InjectedFault};

const SERVICES: [&str; 2] = ["cart", "till"];
/// The path of creates alone.
const CREATE: &str = "endpointslices?&fieldManager";

#[derive(Debug, Clone)]
enum Step {
    PutService(usize, Demand),
    DropService(usize),
    PutPod(u32, PodState),
    DropPod(u32),
    /// Another client changes one of our slices.
    Meddle(Meddling),
    Fault(Fault),
    Pass(u64),
    Restart,
}

/// What a Service asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// The pods of this app.
    Annotated(usize),
    Selector,
    Nothing,
}

#[derive(Debug, Clone, Copy)]
struct PodState {
    app: usize,
    ready: bool,
    leaving: bool,
    stage: Stage,
}

/// Whether a pod can have an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Runs,
    HasNoAddress,
    HasNoNode,
    Ended,
}

#[derive(Debug, Clone, Copy)]
enum Meddling {
    Empty,
    Forge,
    Delete,
    TakeOver,
    Rename,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Cut,
    Expire,
    HoldSlices,
    ReleaseSlices,
    Refuse(u16),
    LoseAnswer,
    Down,
}

#[derive(Debug, Default)]
struct Model {
    services: BTreeMap<usize, Demand>,
    pods: BTreeMap<u32, PodState>,
}

impl Model {
    /// What the slices of a service must have; `None`: there must be none.
    fn expected(&self, service: usize) -> Option<BTreeSet<String>> {
        let Some(Demand::Annotated(app)) = self.services.get(&service) else { return None };
        let pods = self.pods.iter().filter(|(_, pod)| pod.app == *app && pod.stage == Stage::Runs);
        let text = |(n, pod): (&u32, &PodState)| {
            let conditions = match (pod.ready, pod.leaving) {
                (true, false) => "rs",
                (true, true) => "st",
                (false, false) => "",
                (false, true) => "t",
            };
            format!("p-{n} 10.0.0.{n}:8080 {conditions}")
        };
        Some(pods.map(text).collect())
    }
}

fn pod_object(n: u32, state: PodState) -> Value {
    let mut object = pod("p", n);
    object["metadata"]["labels"]["app"] = json!(SERVICES[state.app]);
    if !state.ready {
        object = unready(object, "2025-03-01T00:00:00Z");
    }
    if state.leaving {
        object = leaving(object);
    }
    match state.stage {
        Stage::Runs => {}
        Stage::HasNoAddress => object["status"]["podIPs"] = json!([]),
        Stage::HasNoNode => object["spec"]["nodeName"] = json!("n9"),
        Stage::Ended => object["status"]["phase"] = json!("Failed"),
    }
    object
}

fn service_object(n: usize, demand: Demand, uid: usize) -> Value {
    let mut object = service(SERVICES[n]);
    object["metadata"]["uid"] = json!(format!("uid-{uid}"));
    match demand {
        Demand::Annotated(app) => {
            object["metadata"]["annotations"]["rouse.dev/selector"] = json!(format!("app={}", SERVICES[app]));
        }
        Demand::Selector => object["spec"]["selector"] = json!({"app": "x"}),
        Demand::Nothing => object["metadata"]["annotations"] = json!({}),
    }
    object
}

fn meddle(api: &ApiServer, meddling: Meddling) {
    let ours = SERVICES.iter().find_map(|service| crate::rig::slices(api, service).pop());
    let Some(slice) = ours else { return };
    let name = slice["metadata"]["name"].as_str().unwrap();
    let label = |slice: &mut Value, key: &str, value: &str| slice["metadata"]["labels"][key] = json!(value);
    match meddling {
        Meddling::Empty => edit(api, SLICES, name, |slice| slice["endpoints"] = json!([])),
        Meddling::Forge => edit(api, SLICES, name, |slice| {
            slice["endpoints"] =
                json!([{"addresses": ["192.0.2.1"], "targetRef": {"kind": "Pod", "name": "x"}}]);
        }),
        Meddling::Delete => api.delete(SLICES, "shop", name),
        Meddling::TakeOver => {
            edit(api, SLICES, name, |slice| {
                label(slice, "endpointslice.kubernetes.io/managed-by", "another.example.com");
            });
        }
        Meddling::Rename => {
            edit(api, SLICES, name, |slice| label(slice, "kubernetes.io/service-name", "other"));
        }
    }
}

async fn inject(api: &ApiServer, fault: Fault) {
    match fault {
        Fault::Cut => api.cut(),
        Fault::Expire => api.expire(),
        Fault::HoldSlices => api.hold_events(SLICES),
        Fault::ReleaseSlices => api.release_events(SLICES),
        Fault::Refuse(code) => {
            for method in [Method::POST, Method::PATCH, Method::DELETE] {
                api.refuse(method, "endpointslices", code, "refused by the test", Some(1));
            }
        }
        Fault::LoseAnswer => api.trap(CREATE, InjectedFault::LoseAnswer),
        Fault::Down => {
            api.set_down(true);
            pass(Duration::from_secs(3)).await;
            api.set_down(false);
        }
    }
}

fn steps() -> impl Strategy<Value = Step> {
    let demand = prop_oneof![
        6 => (0..2_usize).prop_map(Demand::Annotated),
        1 => Just(Demand::Selector),
        1 => Just(Demand::Nothing),
    ];
    let stage = prop_oneof![
        5 => Just(Stage::Runs),
        1 => Just(Stage::HasNoAddress),
        1 => Just(Stage::HasNoNode),
        1 => Just(Stage::Ended),
    ];
    let pod = (0..2_usize, any::<bool>(), proptest::bool::weighted(0.2), stage);
    let pod = pod.prop_map(|(app, ready, leaving, stage)| PodState { app, ready, leaving, stage });
    let meddling = prop_oneof![
        Just(Meddling::Empty),
        Just(Meddling::Forge),
        Just(Meddling::Delete),
        Just(Meddling::TakeOver),
        Just(Meddling::Rename),
    ];
    let fault = prop_oneof![
        1 => Just(Fault::Cut),
        1 => Just(Fault::Expire),
        2 => Just(Fault::HoldSlices),
        2 => Just(Fault::ReleaseSlices),
        1 => prop_oneof![Just(403_u16), Just(409), Just(500), Just(503)].prop_map(Fault::Refuse),
        1 => Just(Fault::LoseAnswer),
        1 => Just(Fault::Down),
    ];
    prop_oneof![
        3 => (0..2_usize, demand).prop_map(|(n, demand)| Step::PutService(n, demand)),
        1 => (0..2_usize).prop_map(Step::DropService),
        8 => (1..7_u32, pod).prop_map(|(n, state)| Step::PutPod(n, state)),
        2 => (1..7_u32).prop_map(Step::DropPod),
        2 => meddling.prop_map(Step::Meddle),
        3 => fault.prop_map(Step::Fault),
        4 => (0..3000_u64).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

async fn play(history: Vec<Step>) {
    let api = ApiServer::default();
    api.put("nodes", node("n1", "a"));
    let start = || {
        Rig::with(&api, |settings| settings.options.max_endpoints_per_slice = MaxEndpoints::new(2).unwrap())
    };
    let (mut rig, mut model, mut uids) = (start(), Model::default(), [0; 2]);
    for step in history {
        match step {
            Step::PutService(n, demand) => {
                api.put("services", service_object(n, demand, uids[n]));
                model.services.insert(n, demand);
            }
            Step::DropService(n) => {
                if model.services.remove(&n).is_some() {
                    api.delete("services", "shop", SERVICES[n]);
                    uids[n] += 1;
                }
            }
            Step::PutPod(n, state) => {
                api.put("pods", pod_object(n, state));
                model.pods.insert(n, state);
            }
            Step::DropPod(n) => {
                if model.pods.remove(&n).is_some() {
                    api.delete("pods", "shop", &format!("p-{n}"));
                }
            }
            Step::Meddle(meddling) => meddle(&api, meddling),
            Step::Fault(fault) => inject(&api, fault).await,
            Step::Pass(millis) => pass(Duration::from_millis(millis)).await,
            Step::Restart => {
                rig.stop().await;
                rig = start();
            }
        }
    }
    api.release_events(SLICES);
    api.allow_all();
    check(&rig, &model).await;
    rig.stop().await;
}

async fn check(rig: &Rig, model: &Model) {
    for (n, name) in SERVICES.iter().enumerate() {
        let expected = model.expected(n);
        rig.until(&format!("{name} has {expected:?}"), |rig| match &expected {
            Some(pods) => {
                let slices = rig.slices(name);
                let there: Vec<String> = rig.endpoints(name);
                !slices.is_empty() && there.iter().eq(pods.iter())
            }
            None => rig.slices(name).is_empty(),
        })
        .await;
    }
    // Nothing undoes it, and no pod is there twice.
    pass(Duration::from_secs(70)).await;
    for (n, name) in SERVICES.iter().enumerate() {
        assert_eq!(pod_names(&rig.slices(name)), model.expected(n).unwrap_or_default(), "{name}");
    }
    assert!(rig.slices("other").is_empty(), "no Service has this name");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_slices_are_those_of_the_pods_in_the_end(history in proptest::collection::vec(steps(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(play(history));
    }
}
