//! A scaler over a board of routes, and KEDA's side of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry as Metrics;
use rouse_grpc::GrpcTransport;
use rouse_grpc::scaler::{
    RouteLoad, RouteLoadStore, ScaledRoute, ScaledRouteKind, ScalerMetrics, ScalerServer, ScalerServerParts,
};
use rouse_net::clock::TokioClock;
use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::channel::Http2Channel;
use crate::proto::externalscaler::external_scaler_client::ExternalScalerClient;
use crate::proto::externalscaler::{
    GetMetricsRequest, IsActiveResponse, MetricSpec, MetricValue, ScaledObjectRef,
};

pub(crate) const GENEROUS: Duration = Duration::from_mins(5);

/// A scaler.
pub(crate) struct Scene {
    pub(crate) board: RouteLoadStore,
    pub(crate) server: ScalerServer,
    pub(crate) serving: watch::Sender<bool>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    metrics: Mutex<Metrics>,
}

impl Scene {
    /// One that knows the load.
    pub(crate) fn new() -> Self {
        let (board, stop, serving) =
            (RouteLoadStore::default(), CancellationToken::new(), watch::Sender::new(true));
        let mut metrics = Metrics::default();
        let parts = ScalerServerParts {
            loads: Arc::new(board.clone()),
            serving: serving.subscribe(),
            clock: Arc::new(TokioClock::new()),
            metrics: ScalerMetrics::new(&mut metrics),
        };
        let server = ScalerServer::new(parts, stop.clone());
        Self { board, server, serving, stop, tasks: Mutex::default(), metrics: Mutex::new(metrics) }
    }

    /// KEDA connects, without TLS.
    pub(crate) async fn keda(&self) -> Keda {
        let (ours, theirs) = duplex(64 * 1024);
        let (server, peer) = (self.server.clone(), SocketAddr::from(([10, 1, 0, 9], 50_000)));
        let serve = async move { server.serve_connection(theirs, peer, GrpcTransport::Plain).await };
        self.tasks.lock().unwrap().spawn(serve);
        Keda::over(ours).await
    }

    pub(crate) fn metric(&self, series: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock().unwrap()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    pub(crate) fn calls(&self, method: &str, result: &str) -> u64 {
        self.metric(&format!("rouse_scaler_calls_total{{method=\"{method}\",result=\"{result}\"}}"))
    }
}

/// KEDA's connection to one replica.
pub(crate) struct Keda {
    pub(crate) channel: Http2Channel,
    pub(crate) connection: JoinSet<()>,
}

impl Keda {
    /// HTTP/2 over a stream.
    pub(crate) async fn over<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Self {
        let handshake = timeout(GENEROUS, http2::handshake(TokioExecutor::new(), TokioIo::new(stream)));
        let (sender, driver) = handshake.await.unwrap().unwrap();
        let mut connection = JoinSet::new();
        connection.spawn(async { driver.await.unwrap_or_default() });
        Self { channel: Http2Channel(sender), connection }
    }

    fn client(&self) -> ExternalScalerClient<Http2Channel> {
        ExternalScalerClient::with_origin(self.channel.clone(), "http://scaler:9090".parse().unwrap())
    }

    pub(crate) async fn is_active(&self, of: ScaledObjectRef) -> Result<bool, Status> {
        let answer = timeout(GENEROUS, self.client().is_active(of)).await.unwrap();
        Ok(answer?.into_inner().result)
    }

    pub(crate) async fn specs(&self, of: ScaledObjectRef) -> Result<Vec<MetricSpec>, Status> {
        let answer = timeout(GENEROUS, self.client().get_metric_spec(of)).await.unwrap();
        Ok(answer?.into_inner().metric_specs)
    }

    pub(crate) async fn values(&self, of: ScaledObjectRef, metric: &str) -> Result<Vec<MetricValue>, Status> {
        let request = GetMetricsRequest { scaled_object_ref: Some(of), metric_name: metric.into() };
        let answer = timeout(GENEROUS, self.client().get_metrics(request)).await.unwrap();
        Ok(answer?.into_inner().metric_values)
    }

    pub(crate) async fn stream(&self, of: ScaledObjectRef) -> Result<Streaming<IsActiveResponse>, Status> {
        let answer = timeout(GENEROUS, self.client().stream_is_active(of)).await.unwrap();
        Ok(answer?.into_inner())
    }

    pub(crate) async fn spec_stream(&self, of: ScaledObjectRef) -> Result<(), Status> {
        let answer = timeout(GENEROUS, self.client().stream_metric_spec(of)).await.unwrap();
        answer.map(drop)
    }
}

/// The next answer of a stream. `None`: it ended with OK.
pub(crate) async fn next(stream: &mut Streaming<IsActiveResponse>) -> Option<bool> {
    let message = timeout(GENEROUS, stream.message()).await.unwrap();
    message.unwrap().map(|answer| answer.result)
}

/// Checks that a stream says nothing for this long.
pub(crate) async fn silent(stream: &mut Streaming<IsActiveResponse>, span: Duration) {
    let message = timeout(span, stream.message()).await;
    assert!(message.is_err(), "{message:?}");
}

/// The `ScaledObject` `shop/cart-scaler` with this metadata.
pub(crate) fn trigger(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ScaledObjectRef {
        name: "cart-scaler".into(),
        namespace: "shop".into(),
        scaler_metadata: metadata.collect::<HashMap<_, _>>(),
    }
}

/// A trigger that names an `InterceptorRoute`, as people write it.
pub(crate) fn route_trigger(name: &str) -> ScaledObjectRef {
    trigger(&[("scalerAddress", "rouse-controller.rouse-system:9445"), ("interceptorRoute", name)])
}

/// The `InterceptorRoute` of `shop`.
pub(crate) fn route(name: &str) -> ScaledRoute {
    ScaledRoute { kind: ScaledRouteKind::InterceptorRoute, namespace: "shop".into(), name: name.into() }
}

/// The `HTTPScaledObject` of `shop`.
pub(crate) fn object(name: &str) -> ScaledRoute {
    ScaledRoute { kind: ScaledRouteKind::HttpScaledObject, ..route(name) }
}

/// A route without load that scales on concurrency.
pub(crate) fn idle() -> RouteLoad {
    RouteLoad { concurrency_target: Some(10.0), ..RouteLoad::default() }
}

/// A route with requests in flight.
pub(crate) fn busy(concurrency: u64) -> RouteLoad {
    RouteLoad { active: concurrency > 0, concurrency, ..idle() }
}

/// A route with one held request.
pub(crate) fn held() -> RouteLoad {
    RouteLoad { active: true, held: 1, concurrency: 1, ..idle() }
}
