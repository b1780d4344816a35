//! Services that an xds replica parks: when controllers get the answer, and that no service stays parked by accident.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_grpc::report::ReporterRole;
use rouse_grpc::report::client::{ParkingCommands, ZeroPreparer, parking};
use rouse_net::auth::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::harness::{Controller, Gateway, GatewayOptions, Told, cart, scene};

/// Envoys that acknowledge when a test says so.
struct Envoys {
    parked: Mutex<BTreeSet<ServiceId>>,
    begun: Mutex<usize>,
    acknowledged: watch::Sender<bool>,
}

impl ZeroPreparer for Envoys {
    fn prepare_zero(&self, service: &ServiceId) -> BoxFuture<'static, ()> {
        self.parked.lock().unwrap().insert(service.clone());
        *self.begun.lock().unwrap() += 1;
        let mut acknowledged = self.acknowledged.subscribe();
        Box::pin(async move {
            drop(acknowledged.wait_for(|all| *all).await);
        })
    }

    fn cancel(&self, service: &ServiceId) {
        self.parked.lock().unwrap().remove(service);
    }
}

struct Scene {
    controllers: Vec<Controller>,
    envoys: Arc<Envoys>,
    commands: ParkingCommands,
    _xds: Gateway,
    _worker: JoinSet<()>,
}

impl Scene {
    async fn new(acknowledge: bool) -> Self {
        let (network, controllers) = scene(2);
        let (parked, begun) = (Mutex::default(), Mutex::default());
        let envoys = Arc::new(Envoys { parked, begun, acknowledged: watch::Sender::new(acknowledge) });
        let (commands, worker) = parking(Arc::clone(&envoys) as _);
        let options = GatewayOptions {
            commands: Some(Arc::new(commands.clone())),
            role: ReporterRole::Xds,
            ..GatewayOptions::default()
        };
        let xds = Gateway::start_with(network.clone(), network.clone(), "xds-1", options);
        let mut task = JoinSet::new();
        task.spawn(worker.run(xds.parking.clone(), xds.end.clone()));
        for controller in &controllers {
            controller.sink.until("it reports", |sink| !sink.updates("xds-1").is_empty()).await;
        }
        Self { controllers, envoys, commands, _xds: xds, _worker: task }
    }

    fn prepare(&self, id: u64) {
        self.controllers[0].server.prepare_zero(&cart(), id);
    }

    fn answered(controller: &Controller) -> Option<u64> {
        let newest = controller.sink.all().into_iter().rev().find_map(|told| match told {
            Told::Parked { services, .. } => Some(services),
            _ => None,
        });
        newest.unwrap_or_else(BTreeMap::new).get(&cart()).copied()
    }

    /// Waits until all controllers have this answer.
    async fn until_answer(&self, expected: Option<u64>) {
        for controller in &self.controllers {
            controller.sink.until(&format!("{expected:?}"), |_| Self::answered(controller) == expected).await;
        }
    }

    fn is_parked(&self) -> bool {
        self.envoys.parked.lock().unwrap().contains(&cart())
    }
}

async fn pass(seconds: u64) {
    sleep_until(Instant::now() + Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn the_answer_comes_when_all_envoys_have_acknowledged() {
    let scene = Scene::new(false).await;
    scene.prepare(7);
    pass(5).await;
    assert!(scene.is_parked());
    assert_eq!(Scene::answered(&scene.controllers[0]), None);
    scene.envoys.acknowledged.send_replace(true);
    scene.until_answer(Some(7)).await;
    // Another request for a service that is parked is answered at once.
    scene.prepare(8);
    scene.until_answer(Some(8)).await;
    assert_eq!(*scene.envoys.begun.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_taken_back_ends_it_and_that_of_another_id_does_not() {
    for acknowledged in [true, false] {
        let scene = Scene::new(acknowledged).await;
        scene.prepare(7);
        pass(2).await;
        scene.controllers[0].server.cancel_zero(&cart(), 6);
        pass(2).await;
        assert!(scene.is_parked());
        scene.controllers[0].server.cancel_zero(&cart(), 7);
        pass(2).await;
        assert!(!scene.is_parked());
        scene.until_answer(None).await;
        // What was being prepared has no answer later.
        scene.envoys.acknowledged.send_replace(true);
        pass(2).await;
        assert_eq!(Scene::answered(&scene.controllers[0]), None);
        scene.prepare(9);
        scene.until_answer(Some(9)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_controller_is_gone_is_not_parked_for_longer_than_a_minute() {
    let scene = Scene::new(true).await;
    scene.prepare(7);
    scene.until_answer(Some(7)).await;
    pass(50).await;
    // Asked again: another minute.
    scene.prepare(7);
    pass(50).await;
    assert!(scene.is_parked());
    pass(11).await;
    assert!(!scene.is_parked());
    scene.until_answer(None).await;
}

#[tokio::test(start_paused = true)]
async fn envoys_that_never_acknowledge_do_not_keep_a_service_parked() {
    let scene = Scene::new(false).await;
    scene.prepare(7);
    pass(59).await;
    assert!(scene.is_parked());
    pass(2).await;
    assert!(!scene.is_parked());
    assert_eq!(Scene::answered(&scene.controllers[0]), None);
}

#[tokio::test(start_paused = true)]
async fn a_service_at_zero_is_not_parked_any_more_so_that_its_next_pods_serve_directly() {
    let scene = Scene::new(true).await;
    scene.commands.pods_gone(&cart());
    scene.prepare(7);
    scene.until_answer(Some(7)).await;
    scene.commands.pods_gone(&cart());
    scene.until_answer(None).await;
    assert!(!scene.is_parked());
}
