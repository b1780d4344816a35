//! Terminating pods: their idle connections close, and new requests go to other pods.

use rouse_core::endpoint::SlicePort;
use rouse_core::merge::{BootId, Push, PushEvent, PushOrder};
use rouse_testkit::fakes::{DRAINING, READY, http, pod};

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

/// What a sidecar answers near the end of its pod's grace period.
const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\nX-Rouse-Refused: draining\r\nConnection: close\r\n\
                       Content-Length: 0\r\n\r\n";

#[tokio::test]
async fn a_request_that_a_sidecar_refuses_is_held_for_the_next_pod_with_its_body() {
    let post = "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 5\r\n\r\nhello";
    for (request, end) in [(GET, "\r\n\r\n"), (post, "hello")] {
        let rig = Rig::new(Options::default());
        let (leaving, next) = (Pod::new(1).await, Pod::new(2).await);
        rig.pods(&[(&leaving, DRAINING)]);
        let mut client = rig.send(request).await;
        let mut wire = leaving.accept().await;
        wire.until(end).await;
        wire.write(REFUSAL).await;
        rig.pods(&[(&next, READY)]);
        let mut wire = next.accept().await;
        let again = wire.until(end).await;
        wire.answer("served").await;
        let answer = client.until("served").await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && !answer.contains("x-rouse-refused"),
            "{again} {answer}"
        );
        assert_eq!(rig.metric(r#"rouse_retries_total{reason="draining"}"#), 1);
    }
}

/// Reports the pod as its sidecar does.
fn push(rig: &Rig, number: u32, at: &Pod, event: PushEvent) {
    let push = Push {
        pod: pod(number),
        order: PushOrder { boot: BootId { started: 1, id: 1 }, sequence: 1 },
        ips: vec![at.address.ip()],
        owns_addresses: true,
        ports: vec![SlicePort { name: http(), number: at.address.port() }],
        event,
    };
    rig.service.push(push).unwrap();
}

#[tokio::test]
async fn the_refusal_of_a_pod_that_is_ready_by_slices_is_not_believed_and_its_header_is_removed() {
    let (rig, app) = Rig::with_pod(Options::default()).await;
    let other = Pod::new(2).await;
    let mut client = rig.send(GET).await;
    let mut wire = app.accept_request().await;
    rig.pods(&[(&app, READY), (&other, READY)]);
    wire.write(REFUSAL).await;
    let answer = client.until("\r\n\r\n").await.to_lowercase();
    assert!(answer.starts_with("http/1.1 503") && !answer.contains("x-rouse-refused"), "{answer}");
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="draining"}"#), 0);
}

#[tokio::test]
async fn a_refusal_is_believed_if_the_pod_registered_itself_or_has_begun_to_leave_meanwhile() {
    type Change = fn(&Rig, &Pod, &Pod);
    let changes: [(&str, Change); 4] = [
        ("it drains by its slice", |rig, app, next| rig.pods(&[(app, DRAINING), (next, READY)])),
        ("no slice lists it any more", |rig, _, next| rig.pods(&[(next, READY)])),
        ("it drains by its push", |rig, app, next| {
            push(rig, 1, app, PushEvent::Draining);
            rig.pods(&[(app, READY), (next, READY)]);
        }),
        ("it is not ready by its push", |rig, app, next| {
            push(rig, 1, app, PushEvent::NotReady);
            rig.pods(&[(app, READY), (next, READY)]);
        }),
    ];
    for (what, change) in changes {
        let (rig, app) = Rig::with_pod(Options::default()).await;
        let next = Pod::new(2).await;
        let mut client = rig.send(GET).await;
        let mut wire = app.accept_request().await;
        change(&rig, &app, &next);
        wire.write(REFUSAL).await;
        let _wire = next.answer("served").await;
        let answer = client.until("served").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{what}: {answer}");
    }
    // Ready by its push alone.
    let rig = Rig::new(Options::default());
    let (app, next) = (Pod::new(1).await, Pod::new(2).await);
    push(&rig, 1, &app, PushEvent::Ready);
    let mut client = rig.send(GET).await;
    let mut wire = app.accept_request().await;
    rig.pods(&[(&next, READY)]);
    wire.write(REFUSAL).await;
    let _wire = next.answer("served").await;
    assert!(client.until("served").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_refusal_that_cannot_be_sent_again_is_passed_on_without_its_header() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    // The gateway does not know that the pod leaves, so it has kept nothing of the request.
    let mut client = rig.send("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 5\r\n\r\nhello").await;
    let mut wire = pod.accept().await;
    wire.until("hello").await;
    wire.write(REFUSAL).await;
    let answer = client.until("\r\n\r\n").await.to_lowercase();
    assert!(answer.starts_with("http/1.1 503") && !answer.contains("x-rouse-refused"), "{answer}");
}
