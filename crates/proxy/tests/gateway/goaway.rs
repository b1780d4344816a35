//! GOAWAY from pods: streams above the last stream ID were not processed and are retried (RFC 9113, 6.8).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::http2_peers::{answer, h2c};
use crate::retries::{GOAWAY, POST, TwoStreams};
use crate::rig::Rig;

#[tokio::test]
async fn a_goaway_with_any_code_retries_only_the_streams_above_its_last_id() {
    for code in [0, 2] {
        let (rig, pod) = Rig::with_pod(h2c()).await;
        let streams = TwoStreams::open(&rig, &pod).await;
        let TwoStreams { client: _client, connection: mut old, first, third } = streams;
        old.send(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, code]).await;
        let serving = async {
            let mut new = pod.accept_h2().await;
            let (request, mut respond) = new.accept().await.unwrap().unwrap();
            assert_eq!(request.uri().path(), "/3");
            answer(&mut respond, "three");
            while new.accept().await.is_some() {}
        };
        let three = tokio::select! {
            head = third.head() => head.status().as_u16(),
            () = serving => 0,
        };
        // The old connection ends: the first request was accepted, and is lost.
        drop(old);
        let one = first.head().await.status().as_u16();
        assert_eq!((three, one), (200, 502), "code {code}");
    }
}

/// A pod that ends the connection on every request, by a GOAWAY with an error that names no stream.
#[tokio::test]
async fn a_request_that_makes_pods_end_their_connections_is_not_sent_for_ever() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let sent = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&sent);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        loop {
            let mut stream = pod.accept_raw().await;
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
            let mut preface = [0; 24];
            if stream.read_exact(&mut preface).await.is_err() {
                continue;
            }
            let mut head = [0; 9];
            while stream.read_exact(&mut head).await.is_ok() {
                let length = usize::from(head[1]) << 8 | usize::from(head[2]);
                let mut rest = vec![0; length];
                stream.read_exact(&mut rest).await.unwrap();
                if head[3] == 1 {
                    count.fetch_add(1, Ordering::SeqCst);
                    stream.write_all(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01").await.unwrap();
                    break;
                }
            }
        }
    });
    let answer = rig.send(POST).await.rest().await;
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent <= 3, "sent {sent} times, and then {answer}");
}
