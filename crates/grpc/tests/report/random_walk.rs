//! Property: any interleaving of load, reconnects, stalls and restarts leaves controllers with the sum of all meters, over the
//! real client, TLS and the real server. `src/report/tests.rs` has more cases of the same without a network.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rouse_core::load_meter::{LoadGuard, LoadMeter};
use tokio::time::{Instant, sleep_until};

use crate::harness::{Controller, Gateway, scene};

const GATEWAYS: usize = 2;
const CONTROLLERS: u8 = 2;
const SERVICES: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Begin(usize, usize),
    End(usize),
    Pass(u64),
    Cut(u8),
    Stall(u8),
    RestartController(u8),
    RestartGateway(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..GATEWAYS, 0..SERVICES).prop_map(|(g, s)| Step::Begin(g, s)),
        4 => (0..64_usize).prop_map(Step::End),
        5 => (0..2500_u64).prop_map(Step::Pass),
        2 => (1..=CONTROLLERS).prop_map(Step::Cut),
        1 => (1..=CONTROLLERS).prop_map(Step::Stall),
        1 => (1..=CONTROLLERS).prop_map(Step::RestartController),
        1 => (0..GATEWAYS).prop_map(Step::RestartGateway),
    ]
}

fn name(g: usize) -> String {
    format!("gateway-{g}")
}

async fn walk(steps: Vec<Step>) {
    let (network, mut controllers) = scene(CONTROLLERS);
    let mut gateways: Vec<Gateway> = (0..GATEWAYS).map(|g| Gateway::start(&network, &name(g))).collect();
    let mut present: Vec<(usize, Arc<LoadMeter>, LoadGuard)> = Vec::new();
    for step in steps {
        match step {
            Step::Begin(g, s) => {
                let meter = gateways[g].service(&format!("service-{s}"));
                let guard = meter.begin();
                present.push((g, meter, guard));
            }
            Step::End(n) if !present.is_empty() => _ = present.swap_remove(n % present.len()),
            Step::End(_) => {}
            Step::Pass(milliseconds) => {
                sleep_until(Instant::now() + Duration::from_millis(milliseconds)).await;
            }
            Step::Cut(n) => network.cut(n),
            Step::Stall(n) => {
                network.stall(n, true);
                sleep_until(Instant::now() + Duration::from_millis(1500)).await;
                network.stall(n, false);
            }
            Step::RestartController(n) => {
                network.down(n);
                let controller = Controller::new();
                controller.up(&network, n);
                controllers[usize::from(n) - 1] = controller;
            }
            Step::RestartGateway(g) => {
                present.retain(|(of, ..)| *of != g);
                let gateway = Gateway::start(&network, &name(g));
                std::mem::replace(&mut gateways[g], gateway).stop().await;
            }
        }
    }
    for s in 0..SERVICES {
        let meters: Vec<_> =
            gateways.iter().map(|gateway| gateway.service(&format!("service-{s}"))).collect();
        let all: u64 = meters.iter().map(|meter| u64::from(meter.present())).sum();
        for controller in &controllers {
            controller.sink.until("all load is known", |sink| sink.present(meters[0].key()) == all).await;
        }
    }
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[test]
fn once_the_network_works_controllers_know_the_load_of_all_gateways() {
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let run = |steps: Vec<Step>| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(walk(steps));
        Ok(())
    };
    TestRunner::new(config).run(&prop::collection::vec(step(), 0..40), run).unwrap();
}
