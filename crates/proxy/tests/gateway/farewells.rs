//! A GOAWAY with an error also says which streams were not looked at (RFC 9113, 6.8).

use bytes::Bytes;
use http::Request;

use crate::h2kit::{H2Client, answer, h2c, upload};
use crate::retries::{ByHand, GOAWAY};
use crate::rig::Rig;

#[tokio::test]
async fn a_farewell_of_any_code_sends_the_streams_above_its_last_elsewhere_and_no_other() {
    for code in [0, 2] {
        let (rig, pod) = Rig::with_pod(h2c()).await;
        let client = H2Client::new(&rig).await;
        let ask = async |path: &str| {
            let (response, mut body) =
                client.send(Request::post(format!("http://cart.test{path}")), false).await;
            upload(&mut body, Bytes::from_static(b"hello"), true).await;
            response
        };
        let first = ask("/1").await;
        let mut old = ByHand::new(pod.accept_raw().await).await;
        old.request(1).await;
        let third = ask("/3").await;
        old.request(3).await;
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
        // The old connection ends: the first was accepted, and is lost.
        drop(old);
        let one = first.head().await.status().as_u16();
        assert_eq!((three, one), (200, 502), "code {code}");
    }
}
