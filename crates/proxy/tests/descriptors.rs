//! A gateway without free file descriptors. It is the only test of its process, since it leaves none for others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

use std::fs::File;

use rouse_testkit::fakes::READY;
use rouse_testkit::proxy::rig::{GET, Options, Pod, Rig, eventually};
use rouse_testkit::proxy::wire::take_head;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Takes all remaining descriptors, as copies of one, so that the system-wide file limit is not reached.
fn take_all() -> Vec<File> {
    let one = File::open("/dev/null").unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| one.try_clone().ok()).collect();
    taken.push(one);
    taken
}

/// How many descriptors this process has open.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

const CUT: &str = r#"rouse_connections_cut_total{reason="descriptors"}"#;
const LOCAL: &str = r#"rouse_retries_total{reason="local"}"#;

/// Answers every request with an endless response. Without a free descriptor, it waits for one.
async fn endless(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        connections.spawn(async move {
            take_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n").await.ok();
            while stream.write_all(&[b'a'; 16 * 1024]).await.is_ok() {}
        });
    }
}

/// The only test here: it leaves no descriptors for others.
#[tokio::test]
async fn a_shortage_of_descriptors_is_survived() {
    a_shortage_ejects_no_pod_and_requests_are_served_after_it().await;
    clients_that_do_not_read_are_closed_for_a_new_one_and_its_connection_to_a_pod().await;
}

async fn clients_that_do_not_read_are_closed_for_a_new_one_and_its_connection_to_a_pod() {
    let rig = Rig::new(Options::default());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let pod = Pod::on(1, TcpListener::from_std(listener.try_clone().unwrap()).unwrap());
    rig.pods(&[(&pod, READY)]);
    let mut tasks = JoinSet::new();
    tasks.spawn(endless(TcpListener::from_std(listener).unwrap()));
    let mut stalled = Vec::new();
    for _ in 0..10 {
        let mut client = rig.send(GET).await;
        assert!(client.head().await.starts_with("HTTP/1.1 200 "));
        stalled.push(client);
    }
    let mut taken = take_all();
    // One for the client's own socket.
    taken.pop();
    let mut late = rig.send(GET).await;
    assert!(late.head().await.starts_with("HTTP/1.1 200 "));
    assert!(rig.metric(CUT) > 0);
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}

async fn a_shortage_ejects_no_pod_and_requests_are_served_after_it() {
    // The last are more than a request may try.
    for count in [1, 2, 5] {
        let before = open_descriptors();
        let rig = Rig::new(Options::default());
        let mut pods = Vec::new();
        for number in 1..=count {
            pods.push(Pod::new(number).await);
        }
        let ready: Vec<_> = pods.iter().map(|pod| (pod, READY)).collect();
        rig.pods(&ready);
        // The response shows that the connection is accepted.
        let mut client = rig.send("GET / HTTP/1.1\r\nHost: unknown.test\r\n\r\n").await;
        assert!(client.head().await.starts_with("HTTP/1.1 404 "));
        client.until("\n").await;
        let taken = take_all();
        client.write(GET).await;
        eventually("there was none for it", || rig.metric(LOCAL) > 0).await;
        eventually("it waits", || rig.service.holds() == 1).await;
        assert!(!client.has_read(), "it waits, and gets no error");
        drop(taken);
        let served: Vec<_> = pods.into_iter().map(Pod::serve).collect();
        let answer = client.until("hello").await;
        assert_eq!(served.iter().map(|pod| pod.paths().len()).sum::<usize>(), 1);
        assert!(answer.contains("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(rig.metric("rouse_ejections_total"), 0);
        assert_eq!(rig.service.holds(), 0);
        drop((rig, served, client));
        // A socket that closes later would free a descriptor for the next case.
        eventually("everything is closed", || open_descriptors() <= before).await;
    }
}
