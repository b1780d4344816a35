//! gRPC health.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;

use crate::harness::{GENEROUS, Keda, Scene};
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_client::HealthClient;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};

fn client(keda: &Keda) -> HealthClient<crate::channel::Http2Channel> {
    HealthClient::with_origin(keda.channel.clone(), "http://scaler:9090".parse().unwrap())
}

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

async fn check(keda: &Keda, service: &str) -> Result<ServingStatus, Code> {
    let answer = timeout(GENEROUS, client(keda).check(about(service))).await.unwrap();
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

#[tokio::test(start_paused = true)]
async fn a_replica_serves_when_it_knows_the_load() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    for (serving, expected) in [(true, ServingStatus::Serving), (false, ServingStatus::NotServing)] {
        scene.serving.send_replace(serving);
        for service in ["", "readiness", "externalscaler.ExternalScaler"] {
            assert_eq!(check(&keda, service).await, Ok(expected), "{service}");
        }
        // kubelet must not restart it.
        assert_eq!(check(&keda, "liveness").await, Ok(ServingStatus::Serving));
        assert_eq!(check(&keda, "other").await, Err(Code::NotFound));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_says_the_status_and_each_change_and_ends_with_ok() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    let mut watch = client(&keda).watch(about("readiness")).await.unwrap().into_inner();
    let mut strange = client(&keda).watch(about("other")).await.unwrap().into_inner();
    let status = |answer: Option<HealthCheckResponse>| answer.map(|answer| answer.status());
    assert_eq!(status(watch.message().await.unwrap()), Some(ServingStatus::Serving));
    assert_eq!(status(strange.message().await.unwrap()), Some(ServingStatus::ServiceUnknown));
    scene.serving.send_replace(true);
    assert!(timeout(Duration::from_mins(1), watch.message()).await.is_err(), "nothing has changed");
    scene.serving.send_replace(false);
    assert_eq!(status(watch.message().await.unwrap()), Some(ServingStatus::NotServing));
    assert_eq!(scene.metric("rouse_scaler_streams"), 2);
    scene.stop.cancel();
    assert_eq!(
        (status(watch.message().await.unwrap()), status(strange.message().await.unwrap())),
        (None, None)
    );
}
