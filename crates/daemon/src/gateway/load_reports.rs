//! Reports the load of this gateway to the controllers.

use std::collections::HashSet;
use std::sync::Arc;

use prometheus_client::registry::Registry as Metrics;
use rouse_config::settings::{Problem, Values};
use rouse_core::load_meter::LoadKey;
use rouse_core::registry::Registry;
use rouse_grpc::report::ReporterRole;
use rouse_grpc::report::client::{
    ParkingCommands, ReportClient, ReportClientMetrics, ReportClientParts, ReportClientSettings,
};
use rouse_kube::routes::plan::RoutePlan;
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use rouse_net::tls::{ClientSettings, ClientTls, Pem, Roots, ServerName, Warning};
use tokio::sync::watch;

use super::settings::{REPORT_CA, REPORT_TO, REPORT_TOKEN};
use crate::failure::CommandError;
use crate::settings::about_file;

/// Reads the CAs of the controllers, and returns warnings about them. Otherwise only a missing report would show a bad file.
pub(crate) fn read_roots(values: &Values, problems: &mut Vec<Problem>) -> Vec<Warning> {
    let (Some(_), Some(_)) = (values.get(&REPORT_TO), values.get(&REPORT_CA)) else { return Vec::new() };
    let Ok(any_name) = ServerName::try_from("controller") else { return Vec::new() };
    match ClientTls::new(ClientSettings::new(any_name, roots(values))) {
        Ok((_, warnings)) => warnings,
        Err(error) => {
            let (origin, what) = about_file(values, &REPORT_CA, &error.to_string());
            problems.push(Problem { origin, what });
            Vec::new()
        }
    }
}

fn roots(values: &Values) -> Roots {
    values.get(&REPORT_CA).map_or(Roots::System, |ca| Roots::Pem(vec![Pem::File(ca)]))
}

/// Which routes this gateway has: the load of others is forgotten.
#[derive(Debug, Default)]
pub(crate) struct ReportedRoutes(watch::Sender<HashSet<Arc<str>>>);

impl ReportedRoutes {
    /// These are the routes now.
    pub(crate) fn set(&self, plans: &[Arc<RoutePlan>]) {
        self.0.send_replace(plans.iter().map(|plan| plan.spec.key.load_name()).collect());
    }
}

/// The client that reports, unless reports are off. A process that serves `envoys` answers for them.
pub(crate) fn client(
    values: &Values,
    (registry, routes): (&Arc<Registry>, &ReportedRoutes),
    envoys: Option<&ParkingCommands>,
    clock: TokioClock,
    metrics: &mut Metrics,
) -> Result<Option<ReportClient>, CommandError> {
    let Some(controllers) = values.get(&REPORT_TO) else { return Ok(None) };
    let settings = ReportClientSettings {
        controllers,
        roots: roots(values),
        token_file: values.get(&REPORT_TOKEN),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        role: envoys.map_or(ReporterRole::Gateway, |_| ReporterRole::Xds),
    };
    let (services, names) = (Arc::clone(registry), routes.0.subscribe());
    let parts = ReportClientParts {
        feed: Arc::clone(registry.loads()),
        exists: Arc::new(move |key| match key {
            LoadKey::Service(id) => services.get(id).is_some(),
            LoadKey::Route(name) => names.borrow().contains(name),
        }),
        commands: envoys.map(|commands| Arc::new(commands.clone()) as _),
        clock,
        random_seed: system_seed(),
        metrics: ReportClientMetrics::new(metrics),
    };
    let client = ReportClient::new(settings, parts);
    client.map(Some).map_err(|error| CommandError::Input(format!("load reports cannot start: {error}")))
}
