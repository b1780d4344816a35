//! Scaling while gateways or controllers fail: load that is not known is not taken for none, and one controller writes.

use std::net::{IpAddr, Ipv4Addr};

use http::StatusCode;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::session;
use rouse_e2e::controller::Controller;
use rouse_e2e::gateway::Gateway;
use rouse_e2e::relay::Relay;
use rouse_e2e::wait::patiently;
use rustix::process::Signal;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::scaling::{Scaling, hears, reason, route, seconds};
use crate::test_namespace::{POD, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(the_load_of_three_gateways_is_one_and_a_gateway_that_is_cut_off_keeps_the_pods),
    trial!(controllers_take_over_from_each_other_and_scale_nothing_down_for_a_window).on_our_node(),
];

async fn the_load_of_three_gateways_is_one_and_a_gateway_that_is_cut_off_keeps_the_pods(
    space: TestNamespace,
) {
    const RATE: u32 = 4;
    let scaling = Scaling::start(&space).await;
    for app in ["shop", "idle"] {
        space.run(&App::new(app)).await;
        space.apply(route(&space, app).object()).await;
    }
    let relay = Relay::to(scaling.controller.reports.expect("an address for reports")).await;
    let near = scaling.gateway_by("gateway-0", scaling.port).await;
    let killed = scaling.gateway_by("gateway-1", scaling.port).await;
    let far = scaling.gateway_by("gateway-2", relay.address.port()).await;
    scaling.heard(3).await;

    // Twelve requests a second, three for each pod. No gateway alone has enough of them for a third pod.
    let load = |gateway: &Gateway| Load::on(&gateway.target(&space.host("shop")), RATE);
    let (near_load, killed_load, far_load) = (load(&near), load(&killed), load(&far));
    scaling.replicas("shop", 4).await;
    near_load.stop().await.assert_perfect();
    killed_load.stop().await.assert_perfect();

    // One gateway is gone with its pod: it is forgotten. Only then is its load not missed any more.
    killed.kill().await;
    scaling.heard(2).await;
    scaling.reason("shop", "reporter_silent").await;
    space.delete_now(POD, "gateway-1").await;
    scaling.replicas("shop", 2).await;

    // One is cut off from the controller, and serves on. An app without any load keeps its pod as well: the gateway that is
    // cut off may have requests for it.
    assert_eq!(session::get(&far.target(&space.host("idle")), "/headers").await.status, StatusCode::OK);
    relay.cut();
    scaling.heard(1).await;
    let cut = seconds("ROUSE_CUT_SECONDS", 10);
    for _ in 0..cut {
        far_load.flows(RATE.into()).await;
        for (app, pods) in [("shop", 2), ("idle", 1)] {
            assert_eq!(space.replicas(app).await, pods, "{}", scaling.target(app).await);
        }
    }
    scaling.reason("shop", "reporter_silent").await;
    relay.heal();
    scaling.heard(2).await;
    scaling.replicas("idle", 0).await;
    assert_eq!(space.replicas("shop").await, 2, "{}", scaling.target("shop").await);
    far_load.stop().await.assert_perfect();
    scaling.replicas("shop", 0).await;
    near.stop().await;
    far.stop().await;
    scaling.stop().await;
}

async fn controllers_take_over_from_each_other_and_scale_nothing_down_for_a_window(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    let addresses = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
    let mut second = scaling.controller_at(addresses[1]).await;
    for app in ["shop", "quiet"] {
        space.run(&App::new(app)).await;
        space.apply(route(&space, app).object()).await;
    }
    let gateway = scaling.gateway_of("gateway-0", &addresses).await;
    // Both know the load, and one of them leads.
    scaling.heard(1).await;
    hears(&second, 1).await;
    assert!(!leads(&second).await);
    let load = Load::on(&gateway.target(&space.host("shop")), 12);
    scaling.replicas("shop", 4).await;

    // The leader stands still for longer than its lease. The wake does not need it.
    scaling.controller.signal(Signal::STOP);
    assert_eq!(session::get(&gateway.target(&space.host("quiet")), "/headers").await.status, StatusCode::OK);
    second.leads().await;
    // It goes on, and leads no more: of what it had in mind, nothing is written.
    let written = writes(&second).await;
    scaling.controller.signal(Signal::CONT);
    patiently("the old leader to know it", async || (!leads(&scaling.controller).await).then_some(())).await;
    let before = writes(&scaling.controller).await;
    reason(&second, "quiet", "warming_up").await;
    assert_eq!(space.replicas("shop").await, 4);
    load.stop().await.assert_perfect();
    scaling.replicas("shop", 0).await;
    scaling.replicas("quiet", 0).await;
    assert_eq!(writes(&scaling.controller).await, before, "writes of a controller that does not lead");
    assert!(writes(&second).await > written);

    // And back, when the other one is killed.
    assert_eq!(session::get(&gateway.target(&space.host("quiet")), "/headers").await.status, StatusCode::OK);
    second.signal(Signal::KILL);
    second.ended().await;
    scaling.controller.leads().await;
    reason(&scaling.controller, "quiet", "warming_up").await;
    scaling.replicas("quiet", 0).await;
    gateway.stop().await;
    scaling.stop().await;
}

async fn leads(controller: &Controller) -> bool {
    controller.admin.metrics().await.count("rouse_autoscaler_leader", &[]) == 1
}

/// How often it has changed the number of pods of anything.
async fn writes(controller: &Controller) -> u64 {
    controller.admin.metrics().await.count("rouse_autoscaler_writes_total", &[("result", "written")])
}
