//! The load scenarios: rolling restarts, scaling, zero and back, also through Envoy; reloads, killed pods, and gateway restarts behind
//! haproxy.

use std::collections::BTreeSet;
use std::time::Duration;

use rouse_e2e::admin::Service;
use rouse_e2e::config::{App, Config};
use rouse_e2e::proc;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{eventually, within};
use rouse_e2e::{Programs, programs};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::Instant;

use crate::envoy::EnvoyFront;
use crate::generator::{Load, Tally, seconds};
use crate::haproxy::{self, Haproxy};

/// An app of at most five pods that never scales to zero by itself.
fn app() -> App {
    App::http().scale("max", 5).scale("idle-after", "10m")
}

/// What stands in front of the gateway.
enum Front {
    None,
    Envoy,
}

/// The same, running.
struct RunningFront(Option<EnvoyFront>);

impl Front {
    async fn start(self, config: Config) -> (Rouse, RunningFront) {
        match self {
            Front::None => (Rouse::start(&programs!(), config).await, RunningFront(None)),
            Front::Envoy => {
                let rouse = Rouse::start(&programs!(), config.flag("--xds", "127.0.0.1:0")).await;
                let envoy = EnvoyFront::before(&rouse).await;
                (rouse, RunningFront(Some(envoy)))
            }
        }
    }
}

impl RunningFront {
    fn target(&self, rouse: &Rouse, cold: bool) -> Target {
        self.0.as_ref().map_or_else(|| rouse.target(cold), |envoy| envoy.target.clone())
    }

    /// Most requests went to the pods themselves.
    async fn was_direct(&self, rouse: &Rouse, tally: &Tally) {
        if self.0.is_some() {
            let through_the_gateway = rouse.admin.requests("200").await;
            let all = f64::from(u32::try_from(tally.succeeded).unwrap());
            assert!(
                through_the_gateway * 2.0 < all,
                "of {all} requests, {through_the_gateway} passed the gateway"
            );
        }
    }
}

/// Runs a command of the product against `rouse`.
async fn command(rouse: &Rouse, arguments: &[&str]) {
    let admin = rouse.admin.address().to_string();
    let run = Command::new(programs!().rouse).args(arguments).args(["--admin", &admin]).output();
    let output = within("the command to end", run).await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

fn ready(service: &Service) -> usize {
    service.endpoints.iter().filter(|pod| pod.state == "Ready").count()
}

fn uids(service: &Service) -> BTreeSet<String> {
    service.endpoints.iter().map(|pod| pod.uid.clone()).collect()
}

/// Runs `act` repeatedly under load, at least once.
async fn under_load(target: &Target, mut act: impl AsyncFnMut()) -> Tally {
    let load = Load::on(target);
    let end = Instant::now() + Duration::from_secs(seconds());
    eventually("the load to flow", async || (load.succeeded() > 50).then_some(())).await;
    loop {
        act().await;
        let before = load.succeeded();
        eventually("the load to flow on", async || (load.succeeded() > before + 50).then_some(())).await;
        if Instant::now() >= end {
            return load.stop().await;
        }
    }
}

pub(crate) async fn rolling() {
    replace_all(Config::of(app().scale("min", 3)), Front::None).await;
}

pub(crate) async fn rolling_behind_envoy() {
    replace_all(Config::of(app().scale("min", 3)), Front::Envoy).await;
}

async fn replace_all(config: Config, front: Front) {
    let (rouse, front) = front.start(config).await;
    rouse.admin.until("app", "three pods", |service| ready(service) == 3).await;
    let tally = under_load(&front.target(&rouse, false), async || {
        let before = uids(&rouse.admin.service("app").await);
        command(&rouse, &["restart", "app"]).await;
        let replaced = |service: &Service| uids(service).is_disjoint(&before) && ready(service) == 3;
        rouse.admin.until("app", "three others", replaced).await;
    })
    .await;
    tally.assert_perfect();
    front.was_direct(&rouse, &tally).await;
    rouse.stop().await;
}

pub(crate) async fn up_and_down() {
    scale_up_and_down(Front::None).await;
}

pub(crate) async fn up_and_down_behind_envoy() {
    scale_up_and_down(Front::Envoy).await;
}

async fn scale_up_and_down(front: Front) {
    let (rouse, front) = front.start(Config::of(app().warm())).await;
    rouse.ready("app").await;
    let tally = under_load(&front.target(&rouse, false), async || {
        for pods in [5, 1] {
            command(&rouse, &["scale", "app", &pods.to_string()]).await;
            let there = |service: &Service| ready(service) == pods && service.endpoints.len() == pods;
            rouse.admin.until("app", &format!("{pods} pods"), there).await;
        }
    })
    .await;
    tally.assert_perfect();
    front.was_direct(&rouse, &tally).await;
    rouse.stop().await;
}

pub(crate) async fn zero_and_back() {
    to_zero_and_back(Front::None).await;
}

pub(crate) async fn zero_and_back_behind_envoy() {
    to_zero_and_back(Front::Envoy).await;
}

async fn to_zero_and_back(front: Front) {
    let (rouse, front) = front.start(Config::of(app())).await;
    let tally = under_load(&front.target(&rouse, true), async || {
        let before = uids(&rouse.admin.service("app").await);
        command(&rouse, &["scale", "app", "0"]).await;
        // The next request wakes it again, so the test may miss the moment at zero.
        let replaced = |service: &Service| uids(service).is_disjoint(&before) && ready(service) > 0;
        rouse.admin.until("app", "another pod", replaced).await;
    })
    .await;
    tally.assert_perfect();
    let starts = rouse.admin.cold_starts("app").await;
    assert!(starts.len() > 1, "the app was at zero in between: {starts:?}");
    rouse.stop().await;
}

pub(crate) async fn reload() {
    let programs = programs!();
    let config = |greeting: u32| Config::of(app().warm().env("GREETING", greeting));
    let rouse = Rouse::start(&programs, config(0)).await;
    rouse.ready("app").await;
    let file = rouse.dir().join("rouse.yaml");
    let mut greeting = 0;
    let tally = under_load(&rouse.target(false), async || {
        let before = uids(&rouse.admin.service("app").await);
        greeting += 1;
        // Replaces the file, as editors do. Another app comes and goes with it.
        let other = App::http().named("other");
        let next = if greeting % 2 == 0 { config(greeting) } else { config(greeting).and(other) };
        std::fs::write(file.with_extension("new"), next.yaml(&programs)).unwrap();
        std::fs::rename(file.with_extension("new"), &file).unwrap();
        rouse.signal(Signal::HUP);
        let replaced = |service: &Service| uids(service).is_disjoint(&before) && ready(service) > 0;
        rouse.admin.until("app", "a pod of the new configuration", replaced).await;
    })
    .await;
    tally.assert_perfect();
    rouse.stop().await;
}

pub(crate) async fn kill() {
    let rouse = Rouse::start(&programs!(), Config::of(app().scale("min", 3))).await;
    let mut lost = 0;
    rouse.admin.until("app", "three pods", |service| ready(service) == 3).await;
    let tally = under_load(&rouse.target(false), async || {
        let service = rouse.admin.until("app", "three pods", |service| ready(service) == 3).await;
        let victim = service.endpoints.iter().find(|pod| pod.state == "Ready").unwrap();
        let pid = victim.pid.unwrap();
        // Stopped first, so that it certainly has requests in flight.
        proc::signal(pid, Signal::STOP);
        let stuck = |service: &Service| {
            let pod = service.endpoints.iter().find(|pod| pod.uid == victim.uid);
            pod.map_or(0, |pod| pod.in_flight)
        };
        let service = rouse.admin.until("app", "requests on it", |service| stuck(service) > 1).await;
        lost += stuck(&service) + 2;
        proc::signal(pid, Signal::KILL);
        let gone = |service: &Service| !service.endpoints.iter().any(|pod| pod.uid == victim.uid);
        rouse.admin.until("app", "it to be gone", gone).await;
    })
    .await;
    assert!(tally.failed.keys().all(|why| why == "POST 502 upstream_reset"), "{:#?}", tally.failed);
    let failed: u64 = tally.failed.values().sum();
    assert!(failed <= lost, "{failed} failed, but at most {lost} were in flight on the killed pods");
    eprintln!("{} succeeded; of at most {lost} in flight on killed pods {failed} failed", tally.succeeded);
    rouse.stop().await;
}

pub(crate) async fn gateway_restarts() {
    let programs: Programs = programs!();
    let config = |port: u16, admin: u16| {
        Config::of(app().warm())
            .flag("--listen", &format!("127.0.0.1:{port}"))
            .flag("--admin", &format!("127.0.0.1:{admin}"))
            .flag("--shutdown-delay", "1s")
    };
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let (port, admin) = (haproxy::port(), haproxy::port());
        let rouse = Rouse::start(&programs, config(port, admin)).await;
        rouse.ready("app").await;
        gateways.push((port, admin, Some(rouse)));
    }
    let ports: Vec<(u16, u16)> = gateways.iter().map(|(port, admin, _)| (*port, *admin)).collect();
    let haproxy = Haproxy::before(&ports).await;
    let first = gateways[0].2.as_ref().unwrap();
    let target = Target { address: haproxy.address, ..first.target(false) };
    let mut next = 0;
    let tally = under_load(&target, async || {
        let (port, admin, rouse) = &mut gateways[next % 2];
        next += 1;
        rouse.take().unwrap().stop().await;
        let again = Rouse::start(&programs, config(*port, *admin)).await;
        again.ready("app").await;
        // The other gateway must stay until haproxy uses this one again.
        let served = again.admin.requests("200").await;
        eventually("haproxy to use the gateway again", async || {
            (again.admin.requests("200").await > served).then_some(())
        })
        .await;
        *rouse = Some(again);
    })
    .await;
    tally.assert_perfect();
    for (_, _, rouse) in gateways {
        rouse.unwrap().stop().await;
    }
}
