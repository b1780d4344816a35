//! Pods with real sidecars, as `rouse inject` adds them: they find the gateways by DNS, register themselves with the token of
//! their volume, and drain without a failed request.
//!
//! The gateways are processes of this machine, at its addresses as pods see them.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::session;
use rouse_e2e::command::run;
use rouse_e2e::gateway::Gateway;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{eventually, patiently};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use crate::app::App;
use crate::authority::{Authority, config_map};
use crate::cluster;
use crate::harness::{Case, trial};
use crate::rollouts::{roll, under_load};
use crate::test_namespace::{DEPLOYMENT, POD, SERVICE, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(what_inject_prints_wakes_registers_and_serves).on_our_node(),
    trial!(what_inject_prints_wakes_registers_and_serves_with_a_native_sidecar).on_our_node(),
    trial!(nothing_fails_while_pods_with_sidecars_are_replaced).on_our_node().once(),
    trial!(a_single_pod_is_replaced_long_before_its_grace_period_ends).on_our_node().once(),
    trial!(a_single_pod_with_a_native_sidecar_is_replaced_long_before_its_grace_period_ends)
        .on_our_node()
        .once(),
    trial!(all_gateways_know_a_pod_also_one_that_starts_later).on_our_node(),
    trial!(push_is_turned_off_under_load_without_a_failed_request).on_our_node().once(),
];

/// The addresses of this machine, as pods see it: see `e2e/cluster/node.bash`.
const ADDRESSES: [&str; 3] = ["10.99.0.254", "10.99.0.253", "10.99.0.252"];
const NAME: &str = "rouse-register";
/// The sidecar's ports, as `rouse inject` chooses them.
const SIDECAR_PORT: u16 = 8012;
const SIDECAR_ADMIN: u16 = 8022;
/// Longer than a trial waits for a pod to be gone.
const LONG_GRACE: u32 = 600;

/// Gateways with one registration port on different addresses, behind a headless Service.
struct Gateways {
    all: Vec<Gateway>,
    port: u16,
}

impl Gateways {
    async fn start(space: &TestNamespace, count: usize) -> Self {
        let authority = Authority::named("registrations");
        space.apply(config_map("rouse-ca", &[("ca.crt", &authority.pem())])).await;
        authority.leaf(&[format!("{NAME}.{}.svc", space.name())]).write(space.files());
        let mut gateways = Self { all: Vec::new(), port: 0 };
        for address in &ADDRESSES[..count] {
            let gateway = gateways.one(space, address).await;
            let find = |line: &str| line.split_once("registrations on ")?.1.rsplit_once(':')?.1.parse().ok();
            gateways.port = gateway.output.find("the port for registrations", find).await;
            gateways.all.push(gateway);
        }
        gateways.publish(space, count).await;
        gateways
    }

    /// Starts a gateway at an address.
    async fn one(&self, space: &TestNamespace, address: &str) -> Gateway {
        let launch = space.launch().await;
        let launch = launch
            .flag("--register-listen", format!("{address}:{}", self.port))
            .flag("--register-tls-cert", space.files().join("tls.crt").display())
            .flag("--register-tls-key", space.files().join("tls.key").display());
        launch.start(&programs()).await
    }

    /// Writes the headless Service with the first `count` addresses.
    async fn publish(&self, space: &TestNamespace, count: usize) {
        let ports = json!([{ "name": "register", "port": self.port, "protocol": "TCP" }]);
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME },
            "spec": { "clusterIP": "None", "ports": ports },
        });
        space.apply(service).await;
        let endpoints: Vec<Value> = ADDRESSES[..count]
            .iter()
            .map(|address| json!({ "addresses": [address], "conditions": { "ready": true } }))
            .collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": NAME, "labels": { "kubernetes.io/service-name": NAME } },
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        });
        space.apply(slice).await;
    }

    /// Runs `rouse inject` on an app, and applies what it prints.
    async fn inject(&self, space: &TestNamespace, app: &App, flags: &[&str]) {
        let file = space.files().join("app.json");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [app.deployment(), app.service()] });
        fs::write(&file, list.to_string()).expect("a file");
        let mut command = Command::new(programs().rouse);
        command.args(["inject", "--output", "yaml", "--image", &cluster::gateway_image()]).args(flags);
        command.args([
            "--register",
            &format!("https://{NAME}.{}.svc.cluster.local:{}", space.name(), self.port),
        ]);
        command.arg("--file").arg(&file);
        let printed = run(command).await;
        assert_eq!(printed.code, Some(0), "{printed:?}");
        for object in cluster::objects("what inject prints", &printed.stdout) {
            let items = object["items"].as_array().cloned().unwrap_or_else(|| vec![object.clone()]);
            for item in items {
                space.apply(item).await;
            }
        }
        space.apply(space.route(app.name()).object()).await;
        let host = space.host(app.name());
        for gateway in &self.all {
            patiently("the gateway to have the route", async || {
                gateway.admin.get("/api/v1/routes").await.text().contains(&*host).then_some(())
            })
            .await;
        }
    }

    async fn stop(self) {
        for gateway in self.all {
            gateway.stop().await;
        }
    }
}

/// An app that ends at once when it is told to: only the sidecar keeps it until its requests are done.
fn app(replicas: u32) -> App {
    App::new("shop").replicas(replicas).env("LOG_REQUESTS", 0)
}

/// Waits until a gateway has accepted `count` registrations of this event.
async fn registered(gateway: &Gateway, space: &TestNamespace, event: &str, count: u64) {
    let service = format!("{}/shop", space.name());
    let labels = [("service", service.as_str()), ("event_type", event), ("result", "accepted")];
    patiently(&format!("{count} registrations: {event}"), async || {
        (gateway.admin.metrics().await.count("pod_registration_attempts_total", &labels) >= count)
            .then_some(())
    })
    .await;
}

async fn serves_from_zero(space: &TestNamespace, flags: &[&str]) {
    let gateways = Gateways::start(space, 1).await;
    gateways.inject(space, &app(0), flags).await;
    let [gateway] = &gateways.all[..] else { panic!("one gateway") };
    let answer = session::get(&gateway.target(&space.host("shop")), "/headers").await;
    assert_eq!(
        (answer.status, answer.header("x-rouse-cold-start")),
        (StatusCode::OK, "true"),
        "{}",
        answer.text()
    );
    registered(gateway, space, "ready", 1).await;
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    assert_eq!(answer.json()["pod"], pod.name);
    let service = gateway.admin.service_named(&format!("{}/shop", space.name())).await;
    let addresses: Vec<_> = service.endpoints.iter().map(|endpoint| endpoint.address).collect();
    assert_eq!(addresses, [(pod.ip, SIDECAR_PORT).into()], "requests go to the sidecar");

    // This machine is neither the pod nor has it the secret.
    let admin = Target::plain((pod.ip, SIDECAR_ADMIN).into());
    for path in ["/drain", "/wait-for-drain"] {
        let refused = session::get(&admin, path).await;
        assert!(refused.status.is_client_error(), "{path}: {} {}", refused.status, refused.text());
    }
    assert_eq!(session::get(&admin, "/healthz").await.status, StatusCode::OK, "the pod does not drain");

    space.scale("shop", 0).await;
    registered(gateway, space, "draining", 1).await;
    space.no_pods("shop").await;
    gateways.stop().await;
}

async fn what_inject_prints_wakes_registers_and_serves(space: TestNamespace) {
    serves_from_zero(&space, &[]).await;
}

async fn what_inject_prints_wakes_registers_and_serves_with_a_native_sidecar(space: TestNamespace) {
    serves_from_zero(&space, &["--native"]).await;
}

async fn nothing_fails_while_pods_with_sidecars_are_replaced(space: TestNamespace) {
    let gateways = Gateways::start(&space, 1).await;
    gateways.inject(&space, &app(3).grace(60), &[]).await;
    space.ready_pods("shop", 3).await;
    let [gateway] = &gateways.all[..] else { panic!("one gateway") };
    registered(gateway, &space, "ready", 3).await;
    let tally = under_load(&space, gateway, async |round| roll(&space, DEPLOYMENT, round, 3).await).await;
    tally.assert_perfect();
    registered(gateway, &space, "draining", 3).await;
    gateways.stop().await;
}

async fn replaces_its_only_pod(space: &TestNamespace, flags: &[&str]) {
    let gateways = Gateways::start(space, 1).await;
    gateways.inject(space, &app(1).grace(LONG_GRACE), flags).await;
    space.ready_pods("shop", 1).await;
    let [gateway] = &gateways.all[..] else { panic!("one gateway") };
    registered(gateway, space, "ready", 1).await;
    let tally = under_load(space, gateway, async |round| {
        roll(space, DEPLOYMENT, round, 1).await;
        patiently("the old pod to be gone", async || {
            (space.list(POD, "app=shop").await.len() == 1).then_some(())
        })
        .await;
    })
    .await;
    tally.assert_perfect();
    gateways.stop().await;
}

async fn a_single_pod_is_replaced_long_before_its_grace_period_ends(space: TestNamespace) {
    replaces_its_only_pod(&space, &[]).await;
}

async fn a_single_pod_with_a_native_sidecar_is_replaced_long_before_its_grace_period_ends(
    space: TestNamespace,
) {
    replaces_its_only_pod(&space, &["--native"]).await;
}

/// Replaces the only pod, and returns the time from the first gateway that has its successor as ready to the last one, to 10 ms.
async fn spread_of_a_start(space: &TestNamespace, gateways: &Gateways) -> Duration {
    space.scale("shop", 0).await;
    space.no_pods("shop").await;
    let service = format!("{}/shop", space.name());
    let learned = gateways.all.iter().map(|gateway| {
        let service = &service;
        async move {
            eventually("the gateway to know the new pod", async || {
                let endpoints = gateway.admin.service_named(service).await.endpoints;
                endpoints.iter().any(|endpoint| endpoint.state == "Ready").then(Instant::now)
            })
            .await
        }
    });
    let (times, ()) = tokio::join!(join_all(learned), space.scale("shop", 1));
    *times.iter().max().expect("a gateway") - *times.iter().min().expect("a gateway")
}

async fn all_gateways_know_a_pod_also_one_that_starts_later(space: TestNamespace) {
    let mut gateways = Gateways::start(&space, 3).await;
    gateways.inject(&space, &app(1), &[]).await;
    space.ready_pods("shop", 1).await;
    for gateway in &gateways.all {
        registered(gateway, &space, "ready", 1).await;
    }
    eprintln!(
        "a new pod was known to all three gateways within {:?}",
        spread_of_a_start(&space, &gateways).await
    );
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    gateways.all.pop().expect("a gateway").stop().await;
    let new = gateways.one(&space, ADDRESSES[2]).await;
    registered(&new, &space, "ready", 1).await;
    let service = new.admin.service_named(&format!("{}/shop", space.name())).await;
    let uids: BTreeSet<String> = service.endpoints.into_iter().map(|endpoint| endpoint.uid).collect();
    assert_eq!(uids, BTreeSet::from([pod.uid.clone()]));
    gateways.all.push(new);
    gateways.stop().await;
}

async fn push_is_turned_off_under_load_without_a_failed_request(space: TestNamespace) {
    let gateways = Gateways::start(&space, 1).await;
    gateways.inject(&space, &app(2), &[]).await;
    space.ready_pods("shop", 2).await;
    let [gateway] = &gateways.all[..] else { panic!("one gateway") };
    registered(gateway, &space, "ready", 2).await;
    let load = Load::on(&gateway.target(&space.host("shop")), 100);
    for mode in ["off", "on", "observe", "on"] {
        load.flows(50).await;
        let annotation = json!({ "rouse.dev/push": mode });
        space.patch(SERVICE, "shop", json!({ "metadata": { "annotations": annotation } })).await;
        let service = format!("{}/shop", space.name());
        patiently("both pods to be ready", async || {
            let endpoints = gateway.admin.service_named(&service).await.endpoints;
            (endpoints.iter().filter(|endpoint| endpoint.state == "Ready").count() == 2).then_some(())
        })
        .await;
    }
    load.flows(50).await;
    load.stop().await.assert_perfect();
    gateways.stop().await;
}
