//! Several controllers, and what happens when they come, go and stand still.

use std::time::Duration;

use rouse_core::load_meter::{LoadKey, LoadMeter};
use tokio::time::{Instant, sleep_until, timeout};

use crate::harness::{Controller, GENEROUS, Gateway, Told, reporter, scene};
use crate::network::{Network, address};

async fn known(controllers: &[&Controller], key: &LoadKey, load: u64) {
    for controller in controllers {
        controller.sink.until("the load is known", |sink| sink.present(key) == load).await;
    }
}

/// Waits for a condition that nothing announces.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep_until(Instant::now() + Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(GENEROUS, wait).await.is_ok(), "waited in vain until {what}");
}

fn dials(network: &Network, n: u8) -> usize {
    network.dials.lock().unwrap().iter().filter(|dialled| **dialled == address(n)).count()
}

#[tokio::test(start_paused = true)]
async fn every_controller_gets_the_load_of_every_gateway() {
    let (network, controllers) = scene(3);
    let gateways = ["gateway-1", "gateway-2", "gateway-3"].map(|name| Gateway::start(&network, name));
    let meters = [0, 1, 2].map(|n: usize| gateways[n].service("cart"));
    let _present: Vec<_> = meters.iter().flat_map(|meter| [meter.begin(), meter.begin()]).collect();
    let all: Vec<&Controller> = controllers.iter().collect();
    known(&all, meters[0].key(), 6).await;
    assert_eq!(controllers[2].metric("rouse_load_reporters"), 3);
    until("all are connected", || gateways[0].metric("rouse_load_report_controllers") == 3).await;
    // One that stops is told to the sink, with its last request, and the others stay.
    let [first, ..] = gateways;
    meters[0].count();
    first.stop().await;
    for controller in &controllers {
        let last = controller.sink.updates("gateway-1").pop().unwrap();
        assert_eq!(last.samples.iter().map(|sample| sample.requests).collect::<Vec<_>>(), [3]);
        let left = Told::Left { from: reporter("gateway-1") };
        controller.sink.until("it has left", |sink| sink.all().contains(&left)).await;
        until("it is not connected", || controller.metric("rouse_load_reporters") == 2).await;
        assert_eq!((controller.results("left"), controller.results("broken")), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_comes_later_gets_the_complete_state() {
    let (network, controllers) = scene(1);
    let gateway = Gateway::start(&network, "gateway-1");
    let present: Vec<_> = (0..50).map(|n| gateway.service(&format!("service-{n}")).begin()).collect();
    let last = gateway.service("service-49");
    known(&[&controllers[0]], last.key(), 1).await;
    drop(gateway.service("idle-by-now").begin());
    let later = Controller::new();
    later.up(&network, 2);
    network.name(&[1, 2]);
    later.sink.until("it hears", |sink| !sink.updates("gateway-1").is_empty()).await;
    let first = later.sink.updates("gateway-1").remove(0);
    assert!(first.complete);
    assert_eq!(first.samples.iter().map(|sample| sample.present).sum::<u32>(), 50);
    assert_eq!(first.samples.len(), 51, "what had load once is part of the state");
    drop(present);
    known(&[&controllers[0], &later], last.key(), 0).await;
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_controller_gets_the_complete_state_soon() {
    let (network, controllers) = scene(1);
    let gateway = Gateway::start(&network, "gateway-1");
    let meter = gateway.service("cart");
    let _request = meter.begin();
    known(&[&controllers[0]], meter.key(), 1).await;
    network.down(1);
    sleep_until(Instant::now() + Duration::from_secs(3)).await;
    let (successor, restarted) = (Controller::new(), Instant::now());
    successor.up(&network, 1);
    known(&[&successor], meter.key(), 1).await;
    assert!(restarted.elapsed() < Duration::from_secs(10), "after {:?}", restarted.elapsed());
    let first = successor.sink.updates("gateway-1").remove(0);
    assert!(first.complete && first.samples.len() == 1);
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_stops_says_so_and_the_gateway_finds_the_others() {
    let (network, controllers) = scene(2);
    let gateway = Gateway::start(&network, "gateway-1");
    until("both are connected", || gateway.metric("rouse_load_report_controllers") == 2).await;
    controllers[0].stop.cancel();
    until("one is connected", || gateway.metric("rouse_load_report_controllers") == 1).await;
    assert_eq!(controllers[0].results("stopping"), 1);
    network.down(1);
    network.name(&[2, 3]);
    let third = Controller::new();
    third.up(&network, 3);
    until("both are connected", || gateway.metric("rouse_load_report_controllers") == 2).await;
    let before = dials(&network, 1);
    sleep_until(Instant::now() + Duration::from_mins(5)).await;
    assert_eq!(dials(&network, 1), before, "DNS does not name it any more");
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_stands_still_slows_nobody_and_gets_only_the_newest_state_afterwards() {
    let (network, controllers) = scene(2);
    let gateway = Gateway::start(&network, "gateway-1");
    until("both are connected", || gateway.metric("rouse_load_report_controllers") == 2).await;
    network.stall(1, true);
    // Much more than HTTP/2 buffers: a thousand routes with long names, and new readings each second.
    let meters: Vec<_> =
        (0..1000).map(|n| gateway.registry.route_meter(format!("{n:0>500}").into())).collect();
    let present: Vec<_> = meters.iter().map(LoadMeter::begin).collect();
    let began = Instant::now();
    known(&[&controllers[1]], meters[999].key(), 1).await;
    assert!(began.elapsed() < Duration::from_millis(50), "after {:?}", began.elapsed());
    sleep_until(Instant::now() + Duration::from_secs(3)).await;
    let stalled = controllers[0].sink.updates("gateway-1").len();
    // Pings have noticed it after five seconds; so it is in time.
    network.stall(1, false);
    drop(present);
    known(&[&controllers[0], &controllers[1]], meters[999].key(), 0).await;
    let caught_up = controllers[0].sink.updates("gateway-1").split_off(stalled);
    let samples: usize = caught_up.iter().map(|update| update.samples.len()).sum();
    let others: usize =
        controllers[1].sink.updates("gateway-1").iter().map(|update| update.samples.len()).sum();
    assert!(samples < others, "{samples} readings after it stood still, {others} at the other one");
    assert_eq!(gateway.metric("rouse_load_report_stream_ends_total{reason=\"broken\"}"), 0);
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_gone_without_a_word_is_noticed_and_so_is_a_gateway() {
    let (network, controllers) = scene(1);
    let gateway = Gateway::start(&network, "gateway-1");
    controllers[0].sink.until("it reports", |sink| sink.updates("gateway-1").len() > 2).await;
    let began = Instant::now();
    network.stall(1, true);
    until("the gateway notices", || gateway.metric("rouse_load_report_controllers") == 0).await;
    assert!(began.elapsed() <= Duration::from_secs(7), "after {:?}", began.elapsed());
    let left = Told::Left { from: reporter("gateway-1") };
    controllers[0].sink.until("the controller notices", |sink| sink.all().contains(&left)).await;
    assert!(began.elapsed() <= Duration::from_secs(17), "after {:?}", began.elapsed());
    network.stall(1, false);
    let before = controllers[0].sink.updates("gateway-1").len();
    controllers[0].sink.until("it is back", |sink| sink.updates("gateway-1").len() > before).await;
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_state_of_a_hundred_thousand_meters_arrives_in_parts_below_the_limits() {
    let (network, controllers) = scene(0);
    drop(controllers);
    let gateway = Gateway::start(&network, "gateway-1");
    // The longest names that Kubernetes allows.
    let name = |n: usize| format!("{}/{n:0>250}", "n".repeat(63));
    let meters: Vec<_> = (0..100_000).map(|n| gateway.registry.route_meter(name(n).into())).collect();
    let present: Vec<_> = meters.iter().map(LoadMeter::begin).collect();
    sleep_until(Instant::now() + Duration::from_secs(2)).await;
    let controller = Controller::new();
    controller.up(&network, 1);
    network.name(&[1]);
    controller.sink.until("it hears", |sink| !sink.updates("gateway-1").is_empty()).await;
    let first = controller.sink.updates("gateway-1").remove(0);
    assert!(first.complete);
    assert_eq!(first.samples.len(), 100_000);
    assert!(first.samples.iter().all(|sample| sample.present == 1));
    drop(present);
    known(&[&controller], meters[0].key(), 0).await;
    assert_eq!(controller.results("too_fast") + controller.results("oversized"), 0);
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_of_dns_nothing_is_lost() {
    let (network, controllers) = scene(1);
    let nowhere = std::sync::Arc::<Network>::default();
    let gateway = Gateway::start_with(
        nowhere.clone(),
        network.clone(),
        "gateway-1",
        crate::harness::GatewayOptions::default(),
    );
    let meter = gateway.service("cart");
    let _request = meter.begin();
    sleep_until(Instant::now() + Duration::from_mins(2)).await;
    nowhere.name(&[1]);
    let named = Instant::now();
    known(&[&controllers[0]], meter.key(), 1).await;
    assert!(named.elapsed() <= Duration::from_secs(3), "after {:?}", named.elapsed());
    gateway.stop().await;
}
