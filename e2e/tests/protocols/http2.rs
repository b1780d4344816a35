//! HTTP/2 with prior knowledge, to pods of either protocol.

use http::{Method, Version};
use rouse_e2e::body;
use rouse_e2e::client::session::{self, Http};
use rouse_e2e::config::App;
use rouse_e2e::pattern;
use rouse_e2e::target::Target;
use rouse_e2e::ways;
use tokio::task::JoinSet;

ways!(http_2_is_spoken_to_the_client as http_2_to_a_pod_of_http_1, App::http());
ways!(http_2_is_spoken_to_the_client as http_2_to_a_pod_of_http_2, App::h2c());
async fn http_2_is_spoken_to_the_client(target: Target) {
    let mut client = Http::two(&target).await;
    let whole = client.get("/bytes/100000").await;
    assert_eq!((whole.status.as_u16(), whole.version), (200, Version::HTTP_2));
    assert_eq!(whole.header("content-length"), "100000");
    assert_eq!(whole.body, pattern::whole(100_000));
    let sunk = client.post("/sink", body::full(pattern::whole(100_000))).await.json();
    assert_eq!((&sunk["count"], &sunk["intact"]), (&100_000.into(), &true.into()));
    let head = client.request(Method::HEAD, "/bytes/77").body(body::empty()).unwrap();
    let head = client.whole(head).await;
    assert_eq!((head.header("content-length"), head.body.len()), ("77", 0));
    for code in [204, 304, 404, 500] {
        assert_eq!(client.get(&format!("/status/{code}")).await.status.as_u16(), code);
    }
}

ways!(the_pod_hears_http_1, App::http());
async fn the_pod_hears_http_1(target: Target) {
    let seen = Http::two(&target).await.get("/headers").await.json();
    let expected = if target.gateway.is_some() { "HTTP/1.1" } else { "HTTP/2.0" };
    assert_eq!(seen["version"], expected);
}

ways!(the_pod_hears_http_2, App::h2c());
async fn the_pod_hears_http_2(target: Target) {
    let seen = Http::one(&target).await.get("/headers").await.json();
    let expected = if target.gateway.is_some() { "HTTP/2.0" } else { "HTTP/1.1" };
    assert_eq!(seen["version"], expected);
}

ways!(streams_do_not_wait_for_each_other as streams_to_a_pod_of_http_1, App::http());
ways!(streams_do_not_wait_for_each_other as streams_to_a_pod_of_http_2, App::h2c());
async fn streams_do_not_wait_for_each_other(target: Target) {
    let mut client = Http::two(&target).await;
    let waiting = client.request(Method::GET, "/sse/2/next").body(body::empty()).unwrap();
    let waiting = client.send(waiting).await;
    for _ in 0..5 {
        assert_eq!(client.get("/").await.status, 200);
    }
    assert_eq!(client.get("/next").await.status, 200);
    assert_eq!(session::whole(waiting).await.unwrap().body, "data: 1\n\ndata: 2\n\n");
}

ways!(many_streams_at_once as many_streams_to_a_pod_of_http_1, App::http());
ways!(many_streams_at_once as many_streams_to_a_pod_of_http_2, App::h2c());
async fn many_streams_at_once(target: Target) {
    let mut tasks = JoinSet::new();
    for len in 0..50 {
        let target = target.clone();
        tasks.spawn(async move {
            let mut client = Http::two(&target).await;
            for len in [len, len * 1000] {
                assert_eq!(client.get(&format!("/bytes/{len}")).await.body, pattern::whole(len));
            }
        });
    }
    tasks.join_all().await;
}

ways!(a_cut_response_resets_the_stream as a_cut_response_of_http_1_resets_the_stream, App::http());
ways!(a_cut_response_resets_the_stream as a_cut_response_of_http_2_resets_the_stream, App::h2c());
async fn a_cut_response_resets_the_stream(target: Target) {
    let mut client = Http::two(&target).await;
    let request = client.request(Method::GET, "/cut/1000").body(body::empty()).unwrap();
    // The reset may overtake data in flight, including the head. If it does so between the sidecar and the gateway, the gateway has
    // seen no response, and answers 502.
    let sidecar = target.gateway.as_ref().is_some_and(|gateway| gateway.sidecar);
    if let Ok(response) = client.try_send(request).await
        && !(sidecar && response.status() == 502)
    {
        assert_eq!(response.status(), 200);
        assert!(session::whole(response).await.is_err(), "a truncated body must not look complete");
    }
    assert_eq!(client.get("/").await.status, 200, "other streams on the connection continue");
}
