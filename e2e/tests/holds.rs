//! Many held requests: all are served, in order, within the concurrency limit and within the memory limit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic, also in its helpers")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use http::Method;
use rouse_e2e::body;
use rouse_e2e::client::session::{FullResponse, Http, get, get_many, whole};
use rouse_e2e::config::{App, Config};
use rouse_e2e::proc::Memory;
use rouse_e2e::programs;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{eventually, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// The number of responses of each status.
async fn statuses(mut tasks: JoinSet<FullResponse>) -> BTreeMap<u16, usize> {
    let mut statuses = BTreeMap::new();
    while let Some(answer) = within("all answers", tasks.join_next()).await {
        *statuses.entry(answer.unwrap().status.as_u16()).or_default() += 1;
    }
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_at_once_wake_a_service_once_and_are_all_served_within_its_limits() {
    let app = App::http()
        .env("START_DELAY_MS", 500)
        .env("LIMIT", 5)
        .scale("max", 3)
        .scale("limit", 5)
        .scale("target", 5);
    let rouse = Rouse::start(&programs!(), Config::of(app)).await;
    let target = rouse.target(true);
    let tasks = get_many(&target, "/slow/5", 1000);
    let watching = async {
        let mut most = 0;
        while most == 0 || rouse.admin.service("app").await.holds > 0 {
            most = most.max(rouse.admin.service("app").await.endpoints.len());
        }
        most
    };
    let (statuses, most) = tokio::join!(statuses(tasks), watching);
    assert_eq!(statuses, BTreeMap::from([(200, 1000)]));
    assert!(most <= 3, "{most} pods at once");
    let metrics = rouse.admin.metrics().await;
    assert_eq!(metrics.sum("rouse_wakes_total", &[]).to_string(), "1");
    for pod in &rouse.admin.service("app").await.endpoints {
        let stats = get(&Target::plain(pod.address), "/stats").await.json();
        assert_eq!(stats["over_limit"], 0, "{stats}");
    }
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_are_served_in_the_order_in_which_they_came() {
    let app = App::http().env("START_DELAY_MS", 500).scale("limit", 1);
    let rouse = Rouse::start(&programs!(), Config::of(app)).await;
    // The streams of one connection arrive in the order in which they were opened.
    let mut http = Http::two(&rouse.target(true)).await;
    let mut tasks = JoinSet::new();
    for number in 1..=200 {
        let request = http.request(Method::GET, "/order").body(body::empty()).unwrap();
        let sent = http.start(request).await;
        tasks.spawn(async move { (number, whole(sent.await.unwrap()).await.unwrap().text()) });
    }
    while let Some(answered) = within("all answers", tasks.join_next()).await {
        let (number, text) = answered.unwrap();
        assert_eq!(text.trim(), number.to_string());
    }
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_that_dies_above_two_hundred_requests_survives_five_thousand_that_waited() {
    let app = App::http().env("START_DELAY_MS", 1500).env("DIE_ABOVE", 200).timeout("readiness", "60s");
    let rouse = Rouse::start(&programs!(), Config::of(app)).await;
    let target = rouse.target(true);
    assert_eq!(statuses(get_many(&target, "/slow/2", 5000)).await, BTreeMap::from([(200, 5000)]));
    assert_eq!(rouse.admin.cold_starts("app").await.len(), 1);
    let most = target.stat("most_in_flight").await;
    assert!(most <= 200, "{most} at once");
    rouse.stop().await;
}

/// POSTs up to a mebibyte, as far as the gateway takes it. Returns the status of the response.
async fn post(address: SocketAddr, host: &str) -> Option<u16> {
    let socket = TcpSocket::new_v4().unwrap();
    // The client's kernel buffers are not the gateway's memory, but they do use memory of this machine.
    socket.set_send_buffer_size(8 * 1024).unwrap();
    let (mut read, mut write) = socket.connect(address).await.ok()?.into_split();
    let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1048576\r\n\r\n");
    let sending = async {
        let block = vec![b'x'; 16 * 1024];
        let mut sent = write.write_all(head.as_bytes()).await;
        for _ in 0..64 {
            if sent.is_ok() {
                sent = write.write_all(&block).await;
            }
        }
        std::future::pending::<()>().await;
    };
    let reading = async {
        let mut line = [0; 12];
        read.read_exact(&mut line).await.ok()?;
        std::str::from_utf8(line.get(9..)?).ok()?.parse().ok()
    };
    tokio::select! {
        status = reading => status,
        () = sending => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_uploads_to_a_service_that_never_wakes_are_bounded_and_end() {
    const BUDGET_AND_100_MB: u64 = (256 + 100) * 1024;
    let app = App::http().env("NEVER_LISTEN", 1).timeout("readiness", "20s");
    let host = app.host();
    let rouse = Rouse::start(&programs!(), Config::of(app)).await;
    let memory = Memory::watch(rouse.pid);
    let address = rouse.address;
    let mut tasks = JoinSet::new();
    for _ in 0..10_000 {
        let host = host.clone();
        tasks.spawn(async move { post(address, &host).await });
    }
    rouse.admin.until("app", "thousands of holds", |service| service.holds > 2_000).await;
    let mut statuses = BTreeMap::<Option<u16>, usize>::new();
    while let Some(status) = within("all answers", tasks.join_next()).await {
        *statuses.entry(status.unwrap()).or_default() += 1;
    }
    let allowed = |status: &Option<u16>| matches!(status, Some(503 | 504));
    assert!(statuses.keys().all(allowed), "{statuses:?}");
    assert_eq!(statuses.values().sum::<usize>(), 10_000);
    let grown = memory.grown();
    assert!(grown < BUDGET_AND_100_MB, "{grown} KiB more");
    rouse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_of_a_thousand_hosts_wakes_no_more_than_the_budget() {
    let mut yaml = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\napps:\n".to_owned();
    for number in 0..1000 {
        writeln!(
            yaml,
            "  app-{number}: {{command: [sleep, '600'], timeouts: {{readiness: 2s}}, stop-grace: 1s}}"
        )
        .unwrap();
    }
    let rouse = Rouse::start_with(&programs!(), &yaml, &[]).await;
    let mut tasks = JoinSet::new();
    for number in 0..1000 {
        let target = rouse.target(true).with_host(&format!("app-{number}.localhost"));
        tasks.spawn(async move { get(&target, "/").await });
    }
    assert_eq!(statuses(tasks).await, BTreeMap::from([(504, 1000)]));
    // The limit is a burst of 50 for one namespace and 10 more each second; the scan takes a little more than 2 s.
    let services = rouse.admin.services().await;
    let woken = services.iter().filter(|service| !service.endpoints.is_empty()).count();
    assert!((50..=200).contains(&woken), "{woken} services were woken");
    eventually("no request to be held", async || {
        rouse.admin.services().await.iter().all(|service| service.holds == 0).then_some(())
    })
    .await;
    rouse.stop().await;
}
