//! `rouse controller --dry-run`: which workloads would be scaled, by which policy, and which would not and why.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry as Metrics;
use rouse_config::settings::{ShowFormat, Values};
use rouse_kube::autoscale::{AutoscaleController, AutoscaleMetrics, ScalingView, TargetView};
use rouse_kube::client::connect;
use rouse_kube::lease::Leadership;
use rouse_net::clock::TokioClock;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::settings as set;
use crate::failure::{CommandError, failed};
use crate::process::style;
use crate::settings::{CONTEXT, KUBECONFIG};

/// How long the API server may take to list all objects.
const LONGEST: Duration = Duration::from_mins(1);

/// Prints what would be scaled.
pub(super) fn run(
    values: &Values,
    format: ShowFormat,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed("cannot start a thread"))?;
    let (view, unknown) = runtime.block_on(look(values))?;
    if let Some(what) = unknown {
        writeln!(err, "{}", style::warning(&format!("{what}; nothing would be scaled down")))?;
    }
    match format {
        ShowFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &view).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        ShowFormat::Text => text(&view, out)?,
    }
    Ok(())
}

/// Looks at the cluster as the controller does, and writes nothing.
async fn look(values: &Values) -> Result<(ScalingView, Option<String>), CommandError> {
    let (kubeconfig, context) = (values.get(&KUBECONFIG), values.get(&CONTEXT));
    let client = connect::connect(kubeconfig.as_deref(), context.as_deref()).await?;
    let clock = TokioClock::new();
    let never = Leadership::never(Arc::new(clock));
    let metrics = AutoscaleMetrics::new(&mut Metrics::default());
    let settings =
        rouse_kube::autoscale::AutoscaleSettings { write_status: false, ..set::autoscaler(values, clock) };
    let autoscaler = AutoscaleController::new(client, settings, never, metrics);
    let end = CancellationToken::new();
    let looking = async {
        let synced = timeout(LONGEST, autoscaler.synced()).await;
        end.cancel();
        synced
    };
    let (ran, synced) = tokio::join!(Arc::clone(&autoscaler).run(end.clone()), looking);
    ran.map_err(|error| CommandError::Failed(error.to_string()))?;
    if synced.is_err() {
        let missing = autoscaler.missing().join("; ");
        return Err(CommandError::Failed(format!(
            "the cluster could not be read within {LONGEST:?}: waiting for {missing}"
        )));
    }
    Ok((autoscaler.view(), autoscaler.owners_known().err()))
}

/// The workloads as text: those that are scaled first.
fn text(view: &ScalingView, out: &mut dyn Write) -> io::Result<()> {
    let (scaled, other): (Vec<_>, Vec<_>) = view.targets.iter().partition(|target| target.state == "managed");
    writeln!(out, "scaled by Rouse: {}", scaled.len())?;
    for target in &scaled {
        writeln!(out, "  {}", line(target))?;
    }
    writeln!(out, "not scaled: {}", other.len())?;
    for target in &other {
        writeln!(out, "  {}", line(target))?;
    }
    if !view.without_target.is_empty() {
        writeln!(out, "routes without a workload: {}", view.without_target.len())?;
        for route in &view.without_target {
            writeln!(out, "  {} {}: {}", route.namespace, route.route, route.because)?;
        }
    }
    Ok(())
}

fn line(target: &TargetView) -> String {
    let TargetView { namespace, kind, name, routes, .. } = target;
    let pods = match target.pods {
        Some((replicas, ready)) => format!("{ready}/{replicas} pods ready"),
        None => target.missing.clone().unwrap_or_else(|| "not seen yet".to_owned()),
    };
    let why = target.policy.as_ref().or(target.because.as_ref()).cloned().unwrap_or_default();
    format!("{namespace} {kind}/{name} ({pods}; {}): {why}", routes.join(", "))
}
