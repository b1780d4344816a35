//! The floods: for each, the attack, the number of attackers and the limits of the gateway.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rouse_e2e::config::{App, Config};
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_e2e::{Programs, programs};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attackers::{Attack, UNANSWERED, UNTAKEN};
use crate::monitor::Watch;
use crate::number;

/// Streams of one HTTP/2 client.
const STREAMS: u32 = 250;

/// One flood.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flood {
    pub(crate) name: &'static str,
    pod: fn() -> App,
    attack: fn(host: &str) -> Attack,
    attackers: Attackers,
    limits: Limits,
}

/// The number of concurrent attackers.
#[derive(Debug, Clone, Copy)]
enum Attackers {
    Exactly(u64),
    /// This many times `ROUSE_SIEGE_CLIENTS`.
    Times(u64),
}

/// The limits of the gateway's process.
#[derive(Debug, Clone, Copy)]
enum Limits {
    /// As it starts by default.
    Default,
    /// At most this many open files.
    Files(u32),
}

impl Flood {
    const fn new(name: &'static str, pod: fn() -> App, attack: fn(&str) -> Attack, times: u64) -> Self {
        Self { name, pod, attack, attackers: Attackers::Times(times), limits: Limits::Default }
    }

    const fn of_files(name: &'static str, attack: fn(&str) -> Attack, attackers: u64, files: u32) -> Self {
        let (attackers, limits) = (Attackers::Exactly(attackers), Limits::Files(files));
        Self { name, pod: App::http, attack, attackers, limits }
    }
}

/// All floods of the proxy's port.
pub(crate) const FLOODS: &[Flood] = &[
    Flood::new(
        "downloads_that_stall_over_http2_do_not_exhaust_memory",
        App::http,
        |host| Attack::downloads_over_http2(host, STREAMS),
        1,
    ),
    Flood::new(
        "downloads_that_stall_over_http2_through_an_h2c_pod_do_not_exhaust_memory",
        App::h2c,
        |host| Attack::downloads_over_http2(host, STREAMS),
        2,
    ),
    Flood::new(
        "downloads_that_are_read_slowly_do_not_exhaust_memory",
        App::h2c,
        |host| Attack::slow_downloads_over_http2(host, STREAMS),
        2,
    ),
    Flood::new("downloads_that_stall_over_http1_do_not_exhaust_memory", App::http, Attack::download, 100),
    Flood::new("uploads_that_no_pod_takes_do_not_exhaust_memory", App::http, Attack::upload, 100),
    Flood::new(
        "uploads_over_http2_that_no_pod_takes_do_not_exhaust_memory",
        App::h2c,
        |host| Attack::uploads_over_http2(host, UNTAKEN, STREAMS, 3),
        2,
    ),
    Flood::new(
        "uploads_over_http2_that_no_http1_pod_takes_do_not_exhaust_memory",
        App::http,
        |host| Attack::uploads_over_http2(host, UNTAKEN, STREAMS, 3),
        2,
    ),
    Flood::new(
        "bodies_that_are_kept_for_another_attempt_do_not_exhaust_memory",
        App::h2c,
        |host| Attack::unanswered_uploads_over_http2(host, STREAMS),
        2,
    ),
    Flood::new("heads_that_do_not_end_do_not_exhaust_memory", App::http, Attack::incomplete_head, 400),
    Flood::new("long_heads_that_no_pod_answers_do_not_exhaust_memory", App::http, Attack::long_head, 200),
    Flood::of_files(
        "four_clients_do_not_use_up_the_descriptors_of_a_fifth",
        |host| Attack::downloads_over_http2(host, STREAMS),
        4,
        1024,
    ),
    Flood::of_files(
        "bodies_that_stop_do_not_use_up_the_descriptors_of_others",
        |host| Attack::uploads_over_http2(host, UNANSWERED, STREAMS, 1),
        25,
        1024,
    ),
    Flood::of_files("stalled_downloads_do_not_use_up_the_descriptors_of_others", Attack::download, 450, 1024),
];

/// Floods a gateway through its proxy port.
pub(crate) async fn run(flood: &Flood) {
    let (_dir, programs) = limited(flood.limits);
    let app = (flood.pod)();
    let host = app.host();
    let (rouse, watch) = gateway(&programs, app).await;
    let count = match flood.attackers {
        Attackers::Exactly(count) => count,
        Attackers::Times(times) => times * clients(),
    };
    keep_up(&watch, &(flood.attack)(&host), rouse.address, count).await;
    end(rouse, watch, flood.name).await;
}

/// Floods a gateway's admin port.
pub(crate) async fn admin() {
    let (rouse, watch) = gateway(&programs!(), App::http()).await;
    let admin = rouse.admin.address();
    keep_up(&watch, &Attack::unread_metrics(admin), admin, 30 * clients()).await;
    end(rouse, watch, "unread answers of the admin port").await;
}

fn clients() -> u64 {
    number("ROUSE_SIEGE_CLIENTS", 5)
}

/// A gateway with an app to flood and another one.
async fn gateway(programs: &Programs, app: App) -> (Rouse, Watch) {
    let config = Config::of(app.warm()).and(App::http().named("calm").warm());
    let rouse = Rouse::start(programs, config).await;
    rouse.ready("app").await;
    rouse.ready("calm").await;
    let calm = Target { address: rouse.address, host: "calm.localhost".to_owned(), gateway: None };
    let watch = Watch::begin(&rouse, calm).await;
    (rouse, watch)
}

/// Runs `count` attackers, which reconnect when they are cut off, for as long as the flood lasts.
async fn keep_up(watch: &Watch, attack: &Attack, address: std::net::SocketAddr, count: u64) {
    let end = Instant::now() + Duration::from_secs(number("ROUSE_SIEGE_SECONDS", 4));
    let mut attackers = JoinSet::new();
    for _ in 0..count {
        attackers.spawn(attack.clone().keep_up(address));
    }
    while Instant::now() < end {
        watch.goes_on().await;
    }
    attackers.shutdown().await;
}

async fn end(rouse: Rouse, watch: Watch, flood: &str) {
    watch.end(flood).await;
    rouse.stop().await;
}

/// The product, started with these limits.
fn limited(limits: Limits) -> (Option<tempfile::TempDir>, Programs) {
    let programs = programs!();
    let Limits::Files(files) = limits else { return (None, programs) };
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("rouse-limited");
    let real = programs.rouse.display();
    std::fs::write(&script, format!("#!/bin/sh\nulimit -n {files}\nexec '{real}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    (Some(dir), Programs { rouse: script, ..programs })
}
