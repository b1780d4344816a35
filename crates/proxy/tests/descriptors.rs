//! A gateway that has run out of file descriptors. It has a process of its own, since nothing else works in there
//! meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

#[path = "gateway/rig.rs"]
#[allow(dead_code, reason = "shared with the tests of the gateway, which use all of it")]
mod rig;
#[path = "gateway/wire.rs"]
#[allow(dead_code, reason = "shared with the tests of the gateway, which use all of it")]
mod wire;

use std::fs::File;

use rig::{Options, Pod, Rig, eventually};
use rouse_testkit::fakes::READY;

/// Takes all descriptors that are left. Copies of one, so that the system has enough files for others.
fn take_all() -> Vec<File> {
    let one = File::open("/dev/null").unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| one.try_clone().ok()).collect();
    taken.push(one);
    taken
}

const GET: &str = "GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n";
const LOCAL: &str = r#"rouse_retries_total{reason="local"}"#;

/// The only test here: it leaves nothing for others.
#[tokio::test]
async fn want_of_descriptors_is_held_against_no_pod_and_requests_are_served_when_there_are_some() {
    // The last are more than a request may try.
    for count in [1, 2, 5] {
        let rig = Rig::new(Options::default());
        let mut pods = Vec::new();
        for number in 1..=count {
            pods.push(Pod::new(number).await);
        }
        let ready: Vec<_> = pods.iter().map(|pod| (pod, READY)).collect();
        rig.pods(&ready);
        // Accepted, and known to be so by its answer.
        let mut client = rig.connect().await;
        client.write("GET / HTTP/1.1\r\nHost: nobody.test\r\n\r\n").await;
        assert!(client.head().await.starts_with("HTTP/1.1 404 "));
        client.until("\n").await;
        let taken = take_all();
        client.write(GET).await;
        eventually("there was none for it", || rig.metric(LOCAL) > 0).await;
        eventually("it waits", || rig.service.holds() == 1).await;
        assert!(!client.has_read(), "it waits, and is not told off");
        drop(taken);
        let served: Vec<_> = pods.into_iter().map(Pod::serve).collect();
        let answer = client.until("hello").await;
        assert_eq!(served.iter().map(|pod| pod.paths().len()).sum::<usize>(), 1);
        assert!(answer.contains("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(rig.metric("rouse_ejections_total"), 0);
        assert_eq!(rig.service.holds(), 0);
    }
}
