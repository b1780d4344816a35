//! Envoys of xds replicas: every controller knows them, and which of them are silent.

use std::collections::BTreeMap;

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{EnvoyId, EnvoyLoad, EnvoyServices, EnvoyState, MAX_ENVOYS};
use rouse_core::time::Clock as _;
use rouse_grpc::report::ReporterRole;
use rouse_net::clock::TokioClock;
use tonic::Code;

use crate::harness::{Controller, Gateway, GatewayOptions, Scripted, cart, hello, reporter, scene, token};
use crate::network::Network;
use crate::proto::reporter_message::Kind;
use crate::proto::{Envoy, EnvoyState as WireState, Hello, Loads};

fn xds(network: &std::sync::Arc<Network>, name: &str) -> Gateway {
    let options = GatewayOptions { role: ReporterRole::Xds, ..GatewayOptions::default() };
    Gateway::start_with(network.clone(), network.clone(), name, options)
}

fn state(reports: bool, services: &[ServiceId]) -> EnvoyState {
    let since = TokioClock::new().now();
    let load = if reports { EnvoyLoad::Reported } else { EnvoyLoad::Silent { since } };
    EnvoyState { load, services: EnvoyServices::Named(services.iter().cloned().collect()) }
}

fn envoys(all: &[(&str, EnvoyState)]) -> BTreeMap<EnvoyId, EnvoyState> {
    all.iter().map(|(node, state)| (EnvoyId::new("spiffe://a", node), state.clone())).collect()
}

fn silent(controller: &Controller) -> Option<String> {
    controller.sink.envoys.lock().unwrap().silent().of([&cart()]).map(ToString::to_string)
}

async fn until_silent(controllers: &[Controller], expected: Option<&str>) {
    for controller in controllers {
        let what = format!("silent: {expected:?}");
        controller.sink.until(&what, |_| silent(controller).as_deref() == expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_controller_knows_silent_envoys_and_another_replica_that_hears_one_ends_it() {
    let (network, controllers) = scene(2);
    let (one, other) = (xds(&network, "xds-1"), xds(&network, "xds-2"));
    one.envoys.set(&envoys(&[("edge-1", state(true, &[cart()])), ("edge-2", state(false, &[cart()]))]));
    until_silent(&controllers, Some("edge-2 (spiffe://a)")).await;
    for controller in &controllers {
        assert_eq!(controller.sink.roles.lock().unwrap()[&reporter("xds-1")], ReporterRole::Xds);
        assert_eq!(controller.sink.envoys.lock().unwrap().len(), 2);
    }
    other.envoys.set(&envoys(&[("edge-2", state(true, &[cart()]))]));
    until_silent(&controllers, None).await;
    // The Envoys of a replica that leaves are silent until another one hears them.
    other.stop().await;
    until_silent(&controllers, Some("edge-2 (spiffe://a)")).await;
    one.envoys.set(&envoys(&[("edge-1", state(true, &[cart()])), ("edge-2", state(true, &[cart()]))]));
    until_silent(&controllers, None).await;
    one.envoys.set(&envoys(&[]));
    controllers[0].sink.until("they are gone", |sink| sink.envoys.lock().unwrap().len() <= 1).await;
    one.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_comes_later_gets_all_envoys() {
    let (network, controllers) = scene(2);
    let one = xds(&network, "xds-1");
    let names: Vec<String> = (0..MAX_ENVOYS).map(|n| format!("edge-{n}")).collect();
    let all = names.iter().map(|name| (&**name, state(true, &[cart()]))).collect::<Vec<_>>();
    one.envoys.set(&envoys(&all));
    let known = |controller: &Controller| controller.sink.envoys.lock().unwrap().len();
    controllers[1].sink.until("it knows all", |_| known(&controllers[1]) == MAX_ENVOYS).await;
    network.cut(2);
    controllers[1].sink.until("they are silent", |_| silent(&controllers[1]).is_some()).await;
    controllers[1].sink.until("it is back", |_| silent(&controllers[1]).is_none()).await;
    assert_eq!(known(&controllers[1]), MAX_ENVOYS);
    one.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_gateway_says_of_envoys_is_ignored() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let said = || Loads {
        complete: true,
        envoys: vec![Envoy { node: "edge-1".into(), all_services: true, ..Envoy::default() }],
        ..Loads::default()
    };
    let gateway = Scripted::open(&network, &token("gateway-1")).await.unwrap();
    gateway.send(Kind::Hello(hello())).await;
    gateway.send(Kind::Loads(said())).await;
    let xds = Scripted::open(&network, &token("xds-1")).await.unwrap();
    xds.send(Kind::Hello(Hello { role: 2, ..hello() })).await;
    controller.sink.until("it reports", |sink| !sink.updates("gateway-1").is_empty()).await;
    assert_eq!(silent(&controller), None);
    // A state that this version does not know is silence.
    let mut newer = said();
    newer.envoys[0].state = 99;
    xds.send(Kind::Loads(newer)).await;
    until_silent(&[controller], Some("edge-1")).await;
}

#[tokio::test(start_paused = true)]
async fn envoys_that_cannot_be_true_end_the_stream() {
    let good = || Envoy { node: "edge-1".into(), state: WireState::Reported.into(), ..Envoy::default() };
    let many = (0..=MAX_ENVOYS).map(|n| Envoy { node: format!("e{n}"), ..good() }).collect::<Vec<_>>();
    let bad = [
        (vec![Envoy { node: "x".repeat(257), ..good() }], Code::InvalidArgument, "more than 256 bytes"),
        (vec![Envoy { san: "a\nb".into(), ..good() }], Code::InvalidArgument, "control characters"),
        (vec![Envoy { services: vec!["cart".into()], ..good() }], Code::InvalidArgument, "NAMESPACE/NAME"),
        (vec![Envoy { services: vec!["a/b".into(); 257], ..good() }], Code::InvalidArgument, "256 services"),
        (many, Code::ResourceExhausted, "more than 4096"),
    ];
    for (envoys, code, words) in bad {
        let (network, controller) = (Network::default(), Controller::new());
        controller.up(&network, 1);
        let xds = Scripted::open(&network, &token("xds-1")).await.unwrap();
        xds.send(Kind::Hello(Hello { role: 2, ..hello() })).await;
        let (first, rest) = envoys.split_at(envoys.len().min(4000));
        let loads = |envoys: &[Envoy], continues| Loads {
            complete: true,
            continues,
            envoys: envoys.to_vec(),
            ..Loads::default()
        };
        xds.is_sent(Kind::Loads(loads(first, !rest.is_empty()))).await;
        if !rest.is_empty() {
            xds.is_sent(Kind::Loads(loads(rest, false))).await;
        }
        let (is, why) = xds.end().await;
        assert!(is == code && why.contains(words), "{is:?}: {why}");
    }
}
