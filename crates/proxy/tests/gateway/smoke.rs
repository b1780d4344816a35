//! Smoke tests: a request is forwarded and answered, warm and from zero.

use rouse_testkit::fakes::READY;

use crate::rig::{Options, Pod, Rig, eventually};

#[tokio::test]
async fn a_request_goes_to_the_pod_and_its_answer_comes_back() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let serving = async {
        let mut wire = pod.accept().await;
        let head = wire.head().await;
        wire.answer("hello").await;
        head
    };
    let (answer, head) = tokio::join!(rig.get("/a?b=c"), serving);
    assert!(head.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nhost: cart.test\r\n") && head.contains("\r\nvia: 1.1 rouse-test\r\n"),
        "{head}"
    );
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    assert!(answer.contains("\r\nx-rouse-cold-start: false\r\n"), "{answer}");
    rig.requests_counted(200, "http1", 1).await;
}

#[tokio::test]
async fn a_request_waits_for_its_pod() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    let serving = async {
        // It counts as held a moment before it sends the wake.
        eventually("the request is held", || rig.service.holds() == 1 && rig.engine.wakes() == 1).await;
        rig.pods(&[(&pod, READY)]);
        pod.answer("hello").await
    };
    let (answer, _wire) = tokio::join!(rig.get("/"), serving);
    assert!(answer.contains("\r\nx-rouse-cold-start: true\r\n"), "{answer}");
    assert_eq!(rig.engine.wakes(), 1);
}
