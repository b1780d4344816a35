//! The floods.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rouse_e2e::config::{App, Config};
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_e2e::{Programs, programs};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attackers;
use crate::number;
use crate::watch::Watch;

/// An answer that nobody can hold in memory.
const LARGE: &str = "/bytes/100000000";
/// The app reads nothing of what is sent here.
const UNTAKEN: &str = "/sink/next";
/// Streams of one HTTP/2 client.
const STREAMS: u32 = 250;

/// A gateway with an app to flood and another one.
async fn gateway(programs: &Programs, app: App) -> (Rouse, Watch, String) {
    let host = app.host();
    let config = Config::of(app.warm()).and(App::http().named("calm").warm());
    let rouse = Rouse::start(programs, config).await;
    rouse.ready("app").await;
    rouse.ready("calm").await;
    let calm = Target { address: rouse.address, host: "calm.localhost".to_owned(), gateway: None };
    let watch = Watch::begin(&rouse, calm).await;
    (rouse, watch, host)
}

fn clients() -> u64 {
    number("ROUSE_SIEGE_CLIENTS", 5)
}

/// Keeps up the flood: a client that is cut off comes again.
async fn flood<C>(watch: &Watch, count: u64, mut client: impl AsyncFnMut() -> std::io::Result<C>) -> Vec<C> {
    let end = Instant::now() + Duration::from_secs(number("ROUSE_SIEGE_SECONDS", 4));
    let mut all = Vec::new();
    for _ in 0..count {
        all.extend(client().await);
    }
    while Instant::now() < end {
        watch.goes_on().await;
    }
    all
}

async fn end(rouse: Rouse, watch: Watch, flood: &str) {
    watch.end(flood).await;
    rouse.stop().await;
}

pub(crate) async fn downloads_over_http2() {
    let (rouse, watch, host) = gateway(&programs!(), App::http()).await;
    let client = async || attackers::downloads_over_http2(rouse.address, &host, LARGE, STREAMS).await;
    let clients = flood(&watch, clients(), client).await;
    drop(clients);
    end(rouse, watch, "stalled downloads, HTTP/2").await;
}

pub(crate) async fn downloads_from_h2c() {
    let (rouse, watch, host) = gateway(&programs!(), App::h2c()).await;
    let client = async || attackers::downloads_over_http2(rouse.address, &host, LARGE, STREAMS).await;
    let clients = flood(&watch, 2 * clients(), client).await;
    drop(clients);
    end(rouse, watch, "stalled downloads, HTTP/2 to h2c").await;
}

pub(crate) async fn downloads_over_http1() {
    let (rouse, watch, host) = gateway(&programs!(), App::http()).await;
    let client = async || attackers::download(rouse.address, &host, LARGE).await;
    let clients = flood(&watch, 100 * clients(), client).await;
    drop(clients);
    end(rouse, watch, "stalled downloads, HTTP/1").await;
}

pub(crate) async fn uploads() {
    let (rouse, watch, host) = gateway(&programs!(), App::http()).await;
    let mut tasks = JoinSet::new();
    flood(&watch, 100 * clients(), async || {
        let stream = attackers::connect(rouse.address).await?;
        tasks.spawn(attackers::upload(stream, host.clone(), UNTAKEN));
        Ok(())
    })
    .await;
    tasks.shutdown().await;
    end(rouse, watch, "untaken uploads, HTTP/1").await;
}

pub(crate) async fn uploads_over_http2() {
    let (rouse, watch, host) = gateway(&programs!(), App::h2c()).await;
    let client = async || attackers::uploads_over_http2(rouse.address, &host, UNTAKEN, STREAMS).await;
    let clients = flood(&watch, 2 * clients(), client).await;
    drop(clients);
    end(rouse, watch, "untaken uploads, HTTP/2").await;
}

pub(crate) async fn admin() {
    let (rouse, watch, _) = gateway(&programs!(), App::http()).await;
    let mut tasks = JoinSet::new();
    let admin = rouse.admin.address();
    flood(&watch, 30 * clients(), async || {
        let stream = attackers::connect(admin).await?;
        tasks.spawn(attackers::unread(stream, format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\n\r\n")));
        Ok(())
    })
    .await;
    tasks.shutdown().await;
    end(rouse, watch, "unread answers of the admin port").await;
}

/// The product, with so few descriptors.
fn limited(descriptors: u32) -> (tempfile::TempDir, Programs) {
    let programs = programs!();
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("rouse-limited");
    let real = programs.rouse.display();
    std::fs::write(&script, format!("#!/bin/sh\nulimit -n {descriptors}\nexec '{real}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    (dir, Programs { rouse: script, ..programs })
}

pub(crate) async fn descriptors() {
    let (_dir, programs) = limited(1024);
    let (rouse, watch, host) = gateway(&programs, App::http()).await;
    let client = async || attackers::downloads_over_http2(rouse.address, &host, LARGE, STREAMS).await;
    let clients = flood(&watch, 4, client).await;
    drop(clients);
    end(rouse, watch, "four clients at 1024 descriptors").await;
}

pub(crate) async fn descriptors_over_http1() {
    let (_dir, programs) = limited(1024);
    let (rouse, watch, host) = gateway(&programs, App::http()).await;
    // Those that find no place are not answered.
    let client = async || -> std::io::Result<TcpStream> {
        let answered = attackers::download(rouse.address, &host, LARGE);
        tokio::time::timeout(Duration::from_millis(200), answered).await?
    };
    let clients = flood(&watch, 450, client).await;
    drop(clients);
    end(rouse, watch, "450 stalled downloads at 1024 descriptors").await;
}
