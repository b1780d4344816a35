//! When load is reported: an edge at once, the rest each second, and nothing for what is idle.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::load_meter::LoadKey;
use rouse_core::time::Moment;
use tokio::time::{Instant, sleep_until};

use crate::harness::{Controller, Gateway, Told, scene};

/// Waits until the gateway has reported a few times, and then for a third of a second: the next report is not due soon.
async fn between_ticks(controller: &Controller, name: &str) {
    let reports = controller.sink.updates(name).len();
    controller.sink.until("it reports each second", |sink| sink.updates(name).len() > reports + 2).await;
    sleep_until(Instant::now() + Duration::from_millis(300)).await;
}

#[tokio::test(start_paused = true)]
async fn load_that_begins_is_reported_at_once_and_not_with_the_next_second() {
    let (network, controllers) = scene(1);
    let gateway = Gateway::start(&network, "gateway-1");
    between_ticks(&controllers[0], "gateway-1").await;
    let (meter, began) = (gateway.service("cart"), Instant::now());
    let request = meter.begin();
    controllers[0].sink.until("the load is known", |sink| sink.present(meter.key()) == 1).await;
    assert!(began.elapsed() <= Duration::from_millis(1), "after {:?}", began.elapsed());
    drop(request);
    controllers[0].sink.until("the end is known", |sink| sink.present(meter.key()) == 0).await;
    assert!(began.elapsed() <= Duration::from_secs(1), "after {:?}", began.elapsed());
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn edges_that_come_together_are_few_messages() {
    let (network, controllers) = scene(1);
    let (gateway, sink) = (Gateway::start(&network, "gateway-1"), &controllers[0].sink);
    between_ticks(&controllers[0], "gateway-1").await;
    let (before, began) = (sink.updates("gateway-1").len(), Instant::now());
    let mut present = Vec::new();
    for n in 0..100 {
        present.push(gateway.service(&format!("service-{n}")).begin());
        sleep_until(Instant::now() + Duration::from_millis(1)).await;
    }
    let all = |sink: &crate::harness::RecordingSink| {
        (0..100).all(|n| sink.present(&LoadKey::Service(format!("shop/service-{n}").parse().unwrap())) == 1)
    };
    sink.until("all are known", all).await;
    assert!(began.elapsed() <= Duration::from_millis(112), "after {:?}", began.elapsed());
    let messages = sink.updates("gateway-1").len() - before;
    assert!((8..=12).contains(&messages), "{messages} messages");
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_idle_services_cost_one_heartbeat_per_second() {
    let (network, controllers) = scene(1);
    let (gateway, sink) = (Gateway::start(&network, "gateway-1"), &controllers[0].sink);
    between_ticks(&controllers[0], "gateway-1").await;
    for n in 0..10_000 {
        drop(gateway.service(&format!("service-{n}")).begin());
    }
    sink.until("all are known", |sink| {
        sink.updates("gateway-1").iter().map(|update| update.samples.len()).sum::<usize>() >= 10_000
    })
    .await;
    // Each was read once more, and said the same.
    between_ticks(&controllers[0], "gateway-1").await;
    let before = sink.updates("gateway-1").len();
    between_ticks(&controllers[0], "gateway-1").await;
    let quiet = sink.updates("gateway-1").split_off(before);
    assert!(quiet.len() >= 3 && quiet.iter().all(|update| update.samples.is_empty() && !update.complete));
    let times: Vec<Moment> = sink.told.lock().unwrap().iter().map(|(at, _)| *at).collect();
    for pair in times[times.len() - 3..].windows(2) {
        let pause = pair[1].since(pair[0]);
        assert!(pause >= Duration::from_millis(990) && pause <= Duration::from_millis(1010), "{pause:?}");
    }
    assert_eq!(gateway.metric("rouse_load_report_meters"), 10_000);
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_shorter_than_any_reading_counts_with_its_time() {
    let (network, controllers) = scene(1);
    let (gateway, sink) = (Gateway::start(&network, "gateway-1"), &controllers[0].sink);
    between_ticks(&controllers[0], "gateway-1").await;
    let (meter, long) = (gateway.service("cart"), gateway.registry.route_meter("shop/cart".into()));
    let stream = long.begin();
    for _ in 0..5 {
        let request = meter.begin();
        sleep_until(Instant::now() + Duration::from_millis(20)).await;
        drop(request);
    }
    between_ticks(&controllers[0], "gateway-1").await;
    let newest = |key: &LoadKey| {
        let updates = sink.updates("gateway-1").into_iter().rev();
        updates.flat_map(|update| update.samples).find(|sample| sample.key == *key).unwrap()
    };
    let sample = newest(meter.key());
    assert_eq!((sample.requests, sample.present, sample.held), (5, 0, 0));
    assert_eq!(sample.busy, Duration::from_millis(100));
    let sample = newest(long.key());
    assert_eq!((sample.requests, sample.present), (1, 1));
    // The time of the reading and the time of the request fit to each other, whenever the message was sent.
    let begun = sample.at - sample.busy;
    let earlier = sink.updates("gateway-1").into_iter().flat_map(|update| update.samples);
    for other in earlier.filter(|other| other.key == *long.key()) {
        let differs = (other.at - other.busy).since(begun).max(begun.since(other.at - other.busy));
        assert!(differs <= Duration::from_micros(200), "{differs:?}");
    }
    drop(stream);
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_meter_that_is_retired_with_load_is_reported_as_idle_and_forgotten() {
    let (network, controllers) = scene(1);
    let (gateway, sink) = (Gateway::start(&network, "gateway-1"), &controllers[0].sink);
    between_ticks(&controllers[0], "gateway-1").await;
    let route = gateway.registry.route_meter("shop/cart".into());
    let request = route.begin();
    sink.until("the load is known", |sink| sink.present(route.key()) == 1).await;
    // The route is deleted, and its request goes on.
    route.retire();
    gateway.gone.lock().unwrap().insert(route.key().clone());
    sink.until("it is idle", |sink| sink.present(route.key()) == 0).await;
    let started = Instant::now();
    while gateway.metric("rouse_load_report_meters") > 0 {
        assert!(started.elapsed() < Duration::from_secs(130));
        sleep_until(Instant::now() + Duration::from_secs(1)).await;
    }
    // A complete state does not have it any more.
    network.cut(1);
    let left = Told::Left { from: crate::harness::reporter("gateway-1") };
    sink.until("it is gone", |sink| sink.all().contains(&left)).await;
    let before = sink.updates("gateway-1").len();
    sink.until("it is back", |sink| sink.updates("gateway-1").len() > before).await;
    let complete = sink.updates("gateway-1")[before].clone();
    assert!(complete.complete && complete.samples.is_empty(), "{complete:?}");
    drop(request);
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_request_is_reported_as_held() {
    use rouse_core::endpoint::PortName;
    use rouse_core::service::{ServiceSpec, SlotRequest};
    use rouse_core::snapshot::ConcurrencyLimits;

    let (network, controllers) = scene(1);
    let (gateway, sink) = (Gateway::start(&network, "gateway-1"), &controllers[0].sink);
    between_ticks(&controllers[0], "gateway-1").await;
    let port_name = PortName::new("http");
    let spec = ServiceSpec { ports: vec![port_name.clone()], concurrency: ConcurrencyLimits::default() };
    let service = gateway.registry.declare(&"shop/cart".parse().unwrap(), &spec);
    let port = service.port(&port_name).unwrap();
    let held = |update: &rouse_core::scale::LoadUpdate| {
        update.samples.iter().any(|sample| sample.key == *service.meter().key() && sample.held == 1)
    };
    let known = async {
        sink.until("the hold is known", |sink| sink.updates("gateway-1").iter().any(held)).await;
    };
    tokio::select! {
        _ = port.acquire(SlotRequest::default(), std::future::pending()) => unreachable!("there is no pod"),
        () = known => {}
    }
    // The request gave up.
    sink.until("it is over", |sink| sink.present(service.meter().key()) == 0).await;
    drop(Arc::clone(&gateway.registry));
    gateway.stop().await;
}
