//! Requests that the gateway refuses before routing, and similar valid ones that it accepts.

use std::sync::Arc;

use http::Request;

use crate::access::Kept;
use crate::http2_peers::{self, H2Client};
use crate::rig::{Options, Rig, eventually};

#[tokio::test]
async fn a_refused_request_is_answered_counted_and_logged_like_all_others() {
    let log = Arc::<Kept>::default();
    let rig = Rig::new(log.options());
    let (line, head) = ("a".repeat(20_000), "a".repeat(80_000));
    let many = "a: b\r\n".repeat(200);
    let mut counted = [0; 3];
    for (request, status, reason) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400, "no Host"),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n".to_owned(), 400, "host"),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400, "target"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n".to_owned(),
            400,
            "Content-Length",
        ),
        ("\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}".to_owned(), 400, "TLS"),
        (format!("GET /{line} HTTP/1.1\r\nHost: a\r\n\r\n"), 414, "too long"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nb: {head}\r\n\r\n"), 431, "too long"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431, "too many"),
    ] {
        let answer = rig.send(&request).await.rest().await;
        let shown = request.get(..30.min(request.len()));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer}");
        assert!(answer.contains("\r\nx-rouse-error: bad_request\r\n"), "{shown:?}: {answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{shown:?}: {answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        assert!(body.contains(reason) && body.ends_with('\n'), "{shown:?}: {body}");
        let line = log.next().await;
        assert_eq!((line.status, line.error.as_deref()), (status, Some("bad_request")), "{shown:?}");
        assert_eq!((&*line.request, &*line.route), ("- *", "none"));
        let place = [400, 414, 431].iter().position(|one| *one == status).unwrap();
        counted[place] += 1;
        let metric = format!(r#"rouse_requests_total{{route="none",code="{status}",protocol="http1"}}"#);
        eventually("it is counted once", || rig.metric(&metric) == counted[place]).await;
    }
}

#[tokio::test]
async fn an_http_2_request_that_is_too_long_is_answered_counted_and_logged_too() {
    let log = Arc::<Kept>::default();
    let (rig, pod) = Rig::with_pod(log.options()).await;
    let _served = pod.serve();
    let client = H2Client::new(&rig).await;
    let counted = |status: u16, route: &str| {
        rig.metric(&format!(r#"rouse_requests_total{{route="{route}",code="{status}",protocol="http2"}}"#))
    };
    for (path, header, status, reason) in [
        (16_000, 30_000, 200, "hello"),
        (20_000, 1, 414, "too long"),
        (60_000, 1, 414, "too long"),
        (1, 66_000, 431, "too long"),
        (1, 120_000, 431, "too long"),
    ] {
        let request = Request::get(format!("http://cart.test/{}", "a".repeat(path)));
        let (answer, _) = client.send(request.header("b", "a".repeat(header)), true).await;
        let answer = answer.head().await;
        assert_eq!(answer.status(), status, "{path} {header}");
        let error = answer.headers().get("x-rouse-error").map(|code| code.to_str().unwrap().to_owned());
        let body = http2_peers::read(answer.into_body()).await;
        assert!(String::from_utf8(body).unwrap().contains(reason), "{path} {header}");
        let line = log.next().await;
        let (code, route) = if status == 200 { (None, "cart") } else { (Some("bad_request"), "none") };
        assert_eq!((error.as_deref(), line.error.as_deref()), (code, code), "{path} {header}");
        assert_eq!((line.status, &*line.route), (status, route), "{path} {header}");
    }
    eventually("all are counted", || {
        (counted(200, "cart"), counted(414, "none"), counted(431, "none")) == (1, 2, 2)
    })
    .await;
    // Twice as long as allowed: the HTTP/2 library does not even keep it, and answers by itself.
    let request = Request::get("http://cart.test/").header("b", "a".repeat(140_000));
    let answer = client.send(request, true).await.0.head().await;
    assert_eq!((answer.status().as_u16(), answer.headers().get("x-rouse-error")), (431, None));
}

#[tokio::test]
async fn what_came_before_a_refused_request_is_answered_first() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig
        .send(
            "GET /1 HTTP/1.1\r\nHost: cart.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: cart.test\r\nHost: x\r\n\r\n",
        )
        .await;
    let _wire = pod.answer("one").await;
    let answers = client.rest().await;
    let (first, second) = answers.split_once("one").unwrap();
    assert!(first.starts_with("HTTP/1.1 200 ") && second.starts_with("HTTP/1.1 400 "), "{answers}");
    assert!(second.contains("\r\nx-rouse-error: bad_request\r\n"), "{answers}");
}

/// No client can send the request that stands for a refused head.
#[tokio::test]
async fn no_client_can_send_what_stands_for_a_refused_request() {
    let (rig, _pod) = Rig::with_pod(Options::default()).await;
    let answer = rig.send("- * HTTP/1.1\r\nHost: cart.test\r\nx-rouse-refused: 3\r\n\r\n").await.rest().await;
    assert!(answer.ends_with("the method does not allow this form of target\n"), "{answer}");
}

#[tokio::test]
async fn characters_that_real_clients_leave_in_paths_and_queries_pass_percent_encoded() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    for (target, seen) in [
        ("/?q=\"a\"", "/?q=%22a%22"),
        ("/<b>", "/%3Cb%3E"),
        ("/?q=<b>", "/?q=%3Cb%3E"),
        ("/`a`", "/%60a%60"),
        ("/\"", "/%22"),
        ("/{a}|^[]\\?{}|^[]\\`", "/{a}|^[]\\?{}|^[]\\%60"),
        ("/%zz?%", "/%zz?%"),
        ("http://cart.test/<?\"", "/%3C?%22"),
        ("http://cart.test?<", "/?%3C"),
    ] {
        // In one piece, and cut: in the middle of its target, and in the middle of a header.
        for cut in [0, 8, target.len() + 24] {
            let request = format!(
                "GET {target} HTTP/1.1\r\nHost: cart.test\r\nIf-Match: \"<`>\"\r\nConnection: close\r\n\r\n"
            );
            let (first, second) = request.split_at(cut);
            let mut client = rig.send(first).await;
            client.write(second).await;
            let mut wire = pod.accept().await;
            let head = wire.head().await;
            assert!(head.starts_with(&format!("GET {seen} HTTP/1.1\r\n")), "{target}: {head}");
            assert!(head.contains("\r\nif-match: \"<`>\"\r\n"), "{target}: {head}");
            wire.answer_last("fine").await;
            assert!(client.rest().await.ends_with("fine"));
        }
    }
}
