//! Terminating pods: their idle connections close, and new requests go to other pods.

use rouse_testkit::fakes::{DRAINING, READY};

use crate::rig::{GET, Options, Pod, Rig};

#[tokio::test]
async fn the_idle_connections_of_a_pod_close_when_it_drains() {
    let (rig, leaving) = Rig::with_pod(Options::default()).await;
    let staying = Pod::new(2).await;
    let mut client = rig.connect().await;
    let mut wire = client.get_from(&leaving, "one").await;
    client.write(GET).await;
    wire.head().await;
    wire.answer("two").await;
    client.until("two").await;
    // Both requests used the same connection. Now it is idle, and its pod is terminating.
    rig.pods(&[(&leaving, DRAINING), (&staying, READY)]);
    assert_eq!(wire.rest().await, "");
    client.get_from(&staying, "three").await;
}

#[tokio::test]
async fn what_is_in_flight_on_a_leaving_pod_is_finished() {
    let (rig, leaving) = Rig::with_pod(Options::default()).await;
    let staying = Pod::new(2).await;
    let serving = async {
        let mut wire = leaving.accept_request().await;
        rig.pods(&[(&leaving, DRAINING), (&staying, READY)]);
        wire.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst").await;
        // The slices no longer list the pod.
        rig.pods(&[(&staying, READY)]);
        wire.write(" last").await;
        assert_eq!(wire.rest().await, "", "and then it is not used again");
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.ends_with("first last"), "{answer}");
}

#[tokio::test]
async fn the_last_pod_serves_while_it_drains_and_a_successor_is_woken() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, DRAINING)]);
    let (answer, _wire) = tokio::join!(rig.get("/"), pod.answer("hello"));
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(rig.metric(r#"rouse_requests_to_draining_total{service="shop/cart"}"#), 1);
    assert_eq!(rig.engine.wakes(), 1);
}
