//! The listener for load reports of gateways: loads its certificate, and delivers what gateways say to the autoscaler.

use std::collections::BTreeMap;
use std::sync::Arc;

use rouse_config::settings::{AnySetting, Problem, Problems, Values};
use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{EnvoyUpdate, LoadUpdate, Reporter};
use rouse_core::time::Clock;
use rouse_grpc::report::ReporterRole;
use rouse_grpc::report::server::{
    ReportMetrics, ReportServer, ReportServerParts, ReportServerSettings, ReportSink, ReporterAccount,
};
use rouse_kube::autoscale::{AutoscaleController, ZeroRequests};
use rouse_kube::client::connect::Client;
use rouse_kube::client::issuer_keys::IssuerKeyClient;
use rouse_kube::client::token_review::TokenReviewClient;
use rouse_net::auth::{REPORT_AUDIENCE, TokenAuthenticator, TokenSettings};
use rouse_net::tls::{Alpn, CertEntry, Identity, Pem, ServerSettings, ServerTls, Warning};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::settings::{self as set, POD_NAMESPACE, REPORT_ACCOUNTS, REPORT_TLS_CERT, REPORT_TLS_KEY};
use crate::failure::CommandError;
use crate::process::time_of_day;
use crate::settings::about_file;
use crate::token_check::token_check;

/// The `ServiceAccount` of gateways, in the namespace of the controller.
const GATEWAY_ACCOUNT: &str = "rouse-gateway";

/// The opened certificate of the listener.
#[derive(Debug, Default)]
pub(super) struct ReportCertificate {
    pub(super) tls: Option<Arc<ServerTls>>,
    warnings: Vec<Warning>,
}

impl ReportCertificate {
    /// Warnings about the certificate.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.warnings.iter().map(ToString::to_string)
    }
}

/// Opens the certificate of the report listener, if there is one.
pub(super) fn open(values: &Values) -> Result<ReportCertificate, CommandError> {
    let listens = values.get(&set::REPORT_LISTEN).is_some();
    let files = values.get(&REPORT_TLS_CERT).zip(values.get(&REPORT_TLS_KEY));
    let Some((chain, key)) = files.filter(|_| listens) else { return Ok(ReportCertificate::default()) };
    let is_key = key.display().to_string();
    let identity = Identity { chain: Pem::File(chain), key: Pem::File(key) };
    let entry = CertEntry { identity, names: Vec::new() };
    let settings = ServerSettings { alpn: vec![Alpn::H2], ..ServerSettings::new(vec![entry]) };
    match ServerTls::new(settings) {
        Ok((tls, warnings)) => Ok(ReportCertificate { tls: Some(Arc::new(tls)), warnings }),
        Err(error) => {
            let setting: &'static dyn AnySetting =
                if error.file == is_key { &REPORT_TLS_KEY } else { &REPORT_TLS_CERT };
            let (origin, what) = about_file(values, setting, &error.to_string());
            let problems = Problems::none_in(vec![Problem { origin, what }], ReportCertificate::default());
            problems.map_err(|problems| CommandError::Input(problems.to_string()))
        }
    }
}

/// The listener, before it serves.
pub(super) struct ReportListener {
    pub(super) listener: TcpListener,
    pub(super) tls: Arc<ServerTls>,
    pub(super) autoscaler: Arc<AutoscaleController>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: ReportMetrics,
}

impl ReportListener {
    /// Serves until `end`. `client` is only used for checks of tokens.
    pub(super) async fn serve(self, values: Values, client: Client, end: CancellationToken) {
        let (mode, issuer) = (values.get(&set::REPORT_TOKEN_CHECK), values.get(&set::REPORT_ISSUER));
        let clients = (TokenReviewClient::new(client.clone()), IssuerKeyClient::new(client));
        let refused = "gateways cannot report their load: the issuer of the cluster's tokens is not known; set --report-issuer, \
                       or use --report-token-check tokenreview";
        let check = tokio::select! {
            check = token_check(mode, issuer, clients, refused) => check,
            () = end.cancelled() => return,
        };
        let audience = TokenSettings { audience: REPORT_AUDIENCE.to_owned(), ..TokenSettings::default() };
        let parts = ReportServerParts {
            authenticator: TokenAuthenticator::new(check, audience, time_of_day),
            sink: Arc::new(AutoscalerSink(Arc::clone(&self.autoscaler))),
            clock: self.clock,
            metrics: self.metrics,
        };
        let settings = ReportServerSettings::new(accounts(&values), env!("CARGO_PKG_VERSION"));
        let server = ReportServer::new(settings, parts, end);
        self.autoscaler.set_zero_requests(Box::new(ToXdsReplicas(server.clone())));
        server.serve(self.listener, self.tls).await;
    }
}

/// The accounts whose pods may report.
fn accounts(values: &Values) -> Vec<ReporterAccount> {
    let named = values.get(&REPORT_ACCOUNTS);
    if named.is_empty() {
        let namespace = values.get(&POD_NAMESPACE);
        return vec![ReporterAccount { namespace, name: GATEWAY_ACCOUNT.to_owned() }];
    }
    let account =
        |id: ServiceId| ReporterAccount { namespace: id.namespace().to_owned(), name: id.name().to_owned() };
    named.into_iter().map(account).collect()
}

/// Sends the requests of the autoscaler to all reporters: gateways ignore them.
struct ToXdsReplicas(ReportServer);

impl ZeroRequests for ToXdsReplicas {
    fn prepare_zero(&self, service: &ServiceId, id: u64) {
        self.0.prepare_zero(service, id);
    }

    fn cancel_zero(&self, service: &ServiceId, id: u64) {
        self.0.cancel_zero(service, id);
    }
}

/// Delivers reports to the autoscaler.
struct AutoscalerSink(Arc<AutoscaleController>);

impl ReportSink for AutoscalerSink {
    fn joined(&self, from: &Reporter, role: ReporterRole) {
        if role == ReporterRole::Xds {
            self.0.xds_joined(from);
        }
    }

    fn envoys(&self, from: &Reporter, update: EnvoyUpdate) {
        self.0.heard_envoys(from, update);
    }

    fn parked(&self, from: &Reporter, services: &BTreeMap<ServiceId, u64>) {
        self.0.parked(from, services);
    }

    fn heard(&self, from: &Reporter, update: LoadUpdate) {
        let refused = self.0.heard(from, update);
        if refused > 0 {
            tracing::warn!(gateway = %from, refused, "a gateway reports more services and routes than are kept: nothing is scaled down until it has fewer");
        }
    }

    /// Its load counts until its report is stale; whether it must report is up to the slices of the gateways.
    fn left(&self, from: &Reporter) {
        self.0.reporter_left(from);
        tracing::info!(gateway = %from, "a gateway does not report any more");
    }
}
