//! Before zero: controllers ask all reporters to prepare, and reporters say when they have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rouse_core::endpoint::ServiceId;
use rouse_grpc::report::ReporterRole;
use rouse_grpc::report::client::{PreparedServices, ZeroCommands};
use tokio::time::Instant;

use crate::harness::{Controller, Gateway, GatewayOptions, Scripted, Told, cart, reporter, scene, token};
use crate::network::Network;
use crate::proto::controller_message::Kind as Command;

/// Prepares at once, as an xds replica does without Envoys.
#[derive(Default)]
struct Prepares {
    parking: Mutex<Option<PreparedServices>>,
    prepared: Mutex<BTreeMap<ServiceId, u64>>,
}

impl ZeroCommands for Prepares {
    fn prepare_zero(&self, service: &ServiceId, id: u64) {
        self.prepared.lock().unwrap().insert(service.clone(), id);
        self.parking.lock().unwrap().as_ref().unwrap().set(service, Some(id));
    }

    fn cancel_zero(&self, service: &ServiceId, id: u64) {
        let mut prepared = self.prepared.lock().unwrap();
        if prepared.get(service) == Some(&id) {
            prepared.remove(service);
            self.parking.lock().unwrap().as_ref().unwrap().set(service, None);
        }
    }
}

fn parked(services: &[(ServiceId, u64)]) -> Told {
    Told::Parked { from: reporter("xds-1"), services: services.iter().cloned().collect() }
}

fn newest_parked(controller: &Controller) -> Option<Told> {
    controller.sink.all().into_iter().rfind(|told| matches!(told, Told::Parked { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_replica_prepares_answers_takes_back_and_repeats_its_answer_after_a_reconnect() {
    let (network, controllers) = scene(2);
    let commands = Arc::<Prepares>::default();
    let options = GatewayOptions {
        commands: Some(Arc::clone(&commands) as _),
        role: ReporterRole::Xds,
        ..GatewayOptions::default()
    };
    let xds = Gateway::start_with(network.clone(), network.clone(), "xds-1", options);
    *commands.parking.lock().unwrap() = Some(xds.parking.clone());
    let sinks: Vec<_> = controllers.iter().map(|controller| &controller.sink).collect();
    for sink in &sinks {
        sink.until("it reports", |sink| !sink.updates("xds-1").is_empty()).await;
    }
    assert_eq!(controllers[0].server.connected()[0].greeting.role, ReporterRole::Xds);
    let other = ServiceId::new("shop", "till").unwrap();
    assert_eq!(controllers[0].server.prepare_zero(&cart(), 7), [reporter("xds-1")]);
    controllers[0].server.prepare_zero(&other, 8);
    for controller in &controllers {
        let both = parked(&[(cart(), 7), (other.clone(), 8)]);
        controller
            .sink
            .until("every replica knows", |_| newest_parked(controller).as_ref() == Some(&both))
            .await;
    }
    // Another id is not taken back.
    controllers[0].server.cancel_zero(&other, 9);
    controllers[0].server.cancel_zero(&cart(), 7);
    for controller in &controllers {
        let one = parked(&[(other.clone(), 8)]);
        controller.sink.until("it is taken back", |_| newest_parked(controller).as_ref() == Some(&one)).await;
    }
    let before = sinks[1].all().len();
    network.cut(2);
    sinks[1]
        .until("it left and is back", |sink| {
            let since = &sink.all()[before..];
            let left = since.iter().position(|told| *told == Told::Left { from: reporter("xds-1") });
            left.is_some_and(|left| since[left..].contains(&parked(&[(other.clone(), 8)])))
        })
        .await;
    xds.stop().await;
}

#[tokio::test(start_paused = true)]
async fn commands_reach_every_reporter_in_order_and_after_the_welcome() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let mut streams = Vec::new();
    for name in ["gateway-1", "gateway-2"] {
        let stream = Scripted::open(&network, &token(name)).await.unwrap();
        stream.begin().await;
        controller.sink.until("it reports", |sink| !sink.updates(name).is_empty()).await;
        streams.push(stream);
    }
    assert_eq!(controller.server.prepare_zero(&cart(), 1).len(), 2);
    assert_eq!(controller.server.cancel_zero(&cart(), 1).len(), 2);
    for mut stream in streams {
        let mut commands = Vec::new();
        for _ in 0..3 {
            commands.push(stream.incoming.message().await.unwrap().unwrap().kind.unwrap());
        }
        let [Command::Welcome(_), Command::PrepareZero(prepare), Command::CancelZero(cancel)] = &*commands
        else {
            panic!("{commands:?}")
        };
        assert_eq!((&*prepare.service, prepare.id), ("shop/cart", 1));
        assert_eq!((&*cancel.service, cancel.id), ("shop/cart", 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reporter_that_reads_nothing_is_disconnected_and_holds_up_nobody() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let stream = Scripted::open(&network, &token("gateway-1")).await.unwrap();
    stream.begin().await;
    controller.sink.until("it reports", |sink| !sink.updates("gateway-1").is_empty()).await;
    let name = ServiceId::new(&"n".repeat(63), &"s".repeat(63)).unwrap();
    let mut sent = 0;
    while !controller.server.prepare_zero(&name, sent).is_empty() {
        sent += 1;
        assert!(sent < 10_000);
        tokio::task::yield_now().await;
    }
    assert!(sent >= 256, "{sent}");
    let began = Instant::now();
    controller
        .sink
        .until("it has left", |sink| sink.all().contains(&Told::Left { from: reporter("gateway-1") }))
        .await;
    assert_eq!(controller.results("unread"), 1);
    // It keeps no connection either.
    stream.disconnected().await;
    assert_eq!(began.elapsed().as_secs(), 5);
}
