//! The load reporting service (LRS): answers an Envoy's first message, and reads its reports.
//!
//! A stream is read while its response is polled, so that it needs no task: when the connection is gone, the response is dropped.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, stream as streams};
use rouse_core::budget::{Rate, TokenBucket};
use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{EnvoyId, MAX_ENVOY_NAME};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, Streaming};

use super::super::access::ClientIdentity;
use super::aggregator::{ClusterLoad, StreamId};
use super::{ClientName, EnvoyLoadServer, GATEWAY_REGION, MAX_PRESENT, REPORT_INTERVAL};
use crate::connections::CallerConnection;
use crate::proto::envoy::service::load_stats::v3::load_reporting_service_server::LoadReportingService;
use crate::proto::envoy::service::load_stats::v3::{ClusterStats, LoadStatsRequest, LoadStatsResponse};
use crate::xds::names::parse_cluster_name;

/// How long a stream may take to say who it is.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many messages one stream may send. The burst covers what arrives at once after this process stood still.
const RATE: Rate = Rate { per_second: 10, burst: 100 };

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum StreamEnd {
    #[error("the Envoy ended the stream")]
    Left,
    #[error("the stream broke")]
    Broken,
    #[error("this replica is stopping")]
    Stopping,
    #[error("no first message within {} s", FIRST_MESSAGE_TIMEOUT.as_secs())]
    NoHello,
    #[error(
        "the first message has no node id, or one of more than {MAX_ENVOY_NAME} bytes or with control characters"
    )]
    BadNode,
    #[error("too many Envoys report load to this replica")]
    TooMany,
    #[error("more than {} reports per second; one per second is expected", RATE.per_second)]
    TooFast,
}

impl StreamEnd {
    /// The value of the label `result`.
    fn result(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Broken => "broken",
            Self::Stopping => "stopping",
            Self::NoHello => "late",
            Self::BadNode => "bad_node",
            Self::TooMany => "too_many",
            Self::TooFast => "too_fast",
        }
    }

    fn code(self) -> Code {
        match self {
            Self::Left => Code::Ok,
            Self::Broken => Code::Cancelled,
            Self::Stopping => Code::Unavailable,
            Self::NoHello => Code::DeadlineExceeded,
            Self::BadNode => Code::InvalidArgument,
            Self::TooMany | Self::TooFast => Code::ResourceExhausted,
        }
    }
}

/// Answers the calls of Envoys.
#[derive(Clone)]
pub(crate) struct Calls(pub(super) EnvoyLoadServer);

#[tonic::async_trait]
impl LoadReportingService for Calls {
    type StreamLoadStatsStream = Pin<Box<dyn Stream<Item = Result<LoadStatsResponse, Status>> + Send>>;

    async fn stream_load_stats(
        &self,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<Response<Self::StreamLoadStatsStream>, Status> {
        if let Some(caller) = request.extensions().get::<CallerConnection>() {
            caller.prove();
        }
        let identity = request.extensions().get::<ClientIdentity>().and_then(|it| it.san.as_deref());
        let san =
            identity.or_else(|| Some(&*request.extensions().get::<ClientName>()?.0)).unwrap_or_default();
        let stream = EnvoyStream {
            san: san.to_owned(),
            server: self.0.clone(),
            bucket: TokenBucket::new(RATE, self.0.parts.clock.now()),
            open: None,
            incoming: request.into_inner(),
        };
        let answers = streams::unfold(Some(stream), |stream| async {
            let mut stream = stream?;
            match stream.next_answer().await {
                Ok(answer) => Some((Ok(answer), Some(stream))),
                Err(end) => {
                    stream.server.parts.metrics.counted(end.result());
                    tracing::info!(result = end.result(), envoy = ?stream.envoy(), "the load reports of an Envoy end");
                    let status = Status::new(end.code(), end.to_string());
                    (end != StreamEnd::Left).then_some((Err(status), None))
                }
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// The stream of one Envoy.
struct EnvoyStream {
    san: String,
    server: EnvoyLoadServer,
    bucket: TokenBucket,
    open: Option<Open>,
    incoming: Streaming<LoadStatsRequest>,
}

/// An open account. Dropping it closes it.
struct Open {
    id: StreamId,
    envoy: EnvoyId,
    server: EnvoyLoadServer,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.server.close(self.id);
    }
}

impl EnvoyStream {
    fn envoy(&self) -> Option<String> {
        self.open.as_ref().map(|open| open.envoy.to_string())
    }

    /// Answers the first message, and then reads reports until the stream ends.
    async fn next_answer(&mut self) -> Result<LoadStatsResponse, StreamEnd> {
        if self.open.is_some() {
            loop {
                let report = self.message().await?;
                self.report(&report)?;
            }
        }
        let first =
            timeout(FIRST_MESSAGE_TIMEOUT, self.message()).await.map_err(|_| StreamEnd::NoHello)??;
        self.hello(&first)?;
        if !first.cluster_stats.is_empty() {
            self.report(&first)?;
        }
        let interval = prost_types::Duration { seconds: REPORT_INTERVAL.as_secs().cast_signed(), nanos: 0 };
        Ok(LoadStatsResponse {
            load_reporting_interval: Some(interval),
            send_all_clusters: true,
            ..LoadStatsResponse::default()
        })
    }

    async fn message(&mut self) -> Result<LoadStatsRequest, StreamEnd> {
        let message = tokio::select! {
            biased;
            () = self.server.stop.cancelled() => return Err(StreamEnd::Stopping),
            message = self.incoming.message() => message,
        };
        match message {
            Ok(Some(message)) if self.bucket.try_take(self.server.parts.clock.now()) => Ok(message),
            Ok(Some(_)) => Err(StreamEnd::TooFast),
            Ok(None) => Err(StreamEnd::Left),
            Err(_) => Err(StreamEnd::Broken),
        }
    }

    /// The first message says who it is.
    fn hello(&mut self, first: &LoadStatsRequest) -> Result<(), StreamEnd> {
        let node = first.node.as_ref().map(|node| node.id.as_str()).unwrap_or_default();
        if node.is_empty() || node.len() > MAX_ENVOY_NAME || node.chars().any(char::is_control) {
            return Err(StreamEnd::BadNode);
        }
        let envoy = EnvoyId::new(&self.san, node);
        let id = self.server.open(envoy.clone()).ok_or(StreamEnd::TooMany)?;
        tracing::info!(%envoy, "an Envoy reports its load");
        self.open = Some(Open { id, envoy, server: self.server.clone() });
        Ok(())
    }

    /// Takes the load of all clusters.
    fn report(&self, report: &LoadStatsRequest) -> Result<(), StreamEnd> {
        let Some(open) = &self.open else { return Err(StreamEnd::BadNode) };
        let (parts, mut unknown) = (&self.server.parts, 0);
        let mut known = Vec::with_capacity(report.cluster_stats.len());
        for cluster in &report.cluster_stats {
            match service_of(cluster).filter(|service| parts.meters.meter(service).is_some()) {
                Some(service) => known.push((service, load_of(cluster))),
                None => unknown += 1,
            }
        }
        let now = parts.clock.now();
        let mut state = self.server.state();
        let changes = state.aggregator.report(now, open.id, known);
        state.count(changes, &*parts.meters);
        drop(state);
        parts.metrics.counted("accepted");
        parts.metrics.unknown(unknown);
        Ok(())
    }
}

/// The service of a cluster: by its name for endpoint discovery, if it has one of its own.
fn service_of(cluster: &ClusterStats) -> Option<ServiceId> {
    let named = |name: &str| parse_cluster_name(name).map(|(service, _)| service);
    named(&cluster.cluster_service_name).or_else(|| named(&cluster.cluster_name))
}

/// The load of a cluster at its pods. What goes to gateways is counted by them.
fn load_of(cluster: &ClusterStats) -> ClusterLoad {
    let pods = cluster
        .upstream_locality_stats
        .iter()
        .filter(|stats| stats.locality.as_ref().is_none_or(|locality| locality.region != GATEWAY_REGION));
    pods.fold(ClusterLoad::default(), |sum, stats| ClusterLoad {
        issued: sum.issued.saturating_add(stats.total_issued_requests),
        ended: sum
            .ended
            .saturating_add(stats.total_successful_requests)
            .saturating_add(stats.total_error_requests),
        present: sum.present.saturating_add(stats.total_requests_in_progress).min(MAX_PRESENT.into()),
    })
}
