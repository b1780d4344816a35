//! gRPC at the edges of the controller: the report channel between gateways and controllers, and KEDA's external scaler.
//!
//! The crate translates between the wire and `rouse_core`. It knows no Kubernetes objects: the composing crate passes in what checks
//! tokens and what knows routes, and takes what reporters say.
//!
//! # A gateway, or an xds replica
//!
//! [`report::client::ReportClient`] reports the load of its process to every controller replica. It is the only reader of the
//! registry's [`LoadFeed`](rouse_core::load_meter::LoadFeed). It runs beside the data plane until the end of the drain: held
//! requests and requests in flight count until then.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use rouse_core::{load_meter::LoadKey, registry::Registry};
//! # use rouse_grpc::report::{ReporterRole, client::*};
//! # use rouse_net::{clock::TokioClock, random::system_seed, tls::{Pem, Roots}};
//! # async fn run(
//! #     registry: Arc<Registry>, clock: TokioClock, metrics: &mut prometheus_client::registry::Registry,
//! #     routes: impl Fn(&str) -> bool + Send + Sync + 'static, drained: tokio_util::sync::CancellationToken,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let settings = ReportClientSettings {
//!     controllers: ControllerUrl::of_namespace("rouse-system")?,
//!     roots: Roots::Pem(vec![Pem::File("/install-ca/ca.crt".into())]),
//!     token_file: "/var/run/secrets/rouse-report/token".into(),
//!     version: env!("CARGO_PKG_VERSION").to_owned(),
//!     role: ReporterRole::Gateway,
//! };
//! let parts = ReportClientParts {
//!     feed: Arc::clone(registry.loads()),
//!     // Asked each minute about what has no load, so that deleted services and routes are forgotten.
//!     exists: Arc::new(move |key| match key {
//!         LoadKey::Service(id) => registry.get(id).is_some(),
//!         LoadKey::Route(name) => routes(name),
//!     }),
//!     commands: None,
//!     clock,
//!     random_seed: system_seed(),
//!     metrics: ReportClientMetrics::new(metrics),
//! };
//! ReportClient::new(settings, parts)?.run(drained).await;
//! # Ok(())
//! # }
//! ```
//!
//! # A controller replica
//!
//! [`report::server::ReportServer`] takes the reports of all gateways, on each replica, and delivers them to a
//! [`ReportSink`](report::server::ReportSink). A [`Reporter`](rouse_core::scale::Reporter) is called by the UID of its pod, as in
//! the `targetRef` of the gateways' `EndpointSlices`. The headless Service of the controllers must publish addresses that are not
//! ready: a replica is ready only after it has heard of the gateways.
//!
//! [`scaler::ScalerServer`] answers KEDA, from a [`scaler::RouteLoadStore`] on which the controller publishes the load of each route
//! whose state has changed. `serving` says whether this replica knows the load: the controller sets it when every listed gateway
//! has reported. Otherwise it is only said that a route is active; other calls are answered with `UNAVAILABLE`, and health with
//! `NOT_SERVING`.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use rouse_core::time::Clock;
//! # use rouse_grpc::{GrpcTransport, report::server::*, scaler::*};
//! # use rouse_net::auth::{REPORT_AUDIENCE, TokenAuthenticator, TokenCheck, TokenSettings};
//! # use rouse_net::tls::ServerTls;
//! # use tokio::{net::TcpListener, sync::watch};
//! # use tokio_util::sync::CancellationToken;
//! # struct Listeners { reports: TcpListener, scaler: TcpListener }
//! # async fn run(
//! #     check: TokenCheck, sink: Arc<dyn ReportSink>, clock: Arc<dyn Clock>, tls: Arc<ServerTls>, listeners: Listeners,
//! #     metrics: &mut prometheus_client::registry::Registry, time_of_day: fn() -> std::time::SystemTime,
//! # ) {
//! let stop = CancellationToken::new();
//! let audience = TokenSettings { audience: REPORT_AUDIENCE.to_owned(), ..TokenSettings::default() };
//! let gateways = ReporterAccount { namespace: "rouse-system".to_owned(), name: "rouse-gateway".to_owned() };
//! let reports = ReportServer::new(
//!     ReportServerSettings::new(vec![gateways], env!("CARGO_PKG_VERSION")),
//!     ReportServerParts {
//!         authenticator: TokenAuthenticator::new(check, audience, time_of_day),
//!         sink,
//!         clock: Arc::clone(&clock),
//!         metrics: ReportMetrics::new(metrics),
//!     },
//!     stop.clone(),
//! );
//!
//! let (board, serving) = (RouteLoadStore::default(), watch::Sender::new(false));
//! let scaler = ScalerServer::new(
//!     ScalerServerParts {
//!         loads: Arc::new(board.clone()),
//!         serving: serving.subscribe(),
//!         clock,
//!         metrics: ScalerMetrics::new(metrics),
//!     },
//!     stop.clone(),
//! );
//!
//! // Both end when `stop` is cancelled: streams get a last status, those of KEDA with OK.
//! tokio::join!(reports.serve(listeners.reports, tls), scaler.serve(listeners.scaler, GrpcTransport::Plain));
//! # }
//! ```

mod connections;
#[doc(hidden)]
pub mod fuzzing;
mod proto;
pub mod report;
pub mod scaler;
pub mod xds;

pub use connections::GrpcTransport;
