//! `docs/metrics.md` has every metric of this crate.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use prometheus_client::registry::Registry as Metrics;
use rouse_grpc::report::client::ReportClientMetrics;
use rouse_grpc::report::server::ReportMetrics;
use rouse_grpc::scaler::ScalerMetrics;
use rouse_grpc::xds::XdsMetrics;
use rouse_grpc::xds::load::EnvoyLoadMetrics;

/// The names and types in the tables below these headings.
fn told(headings: &[&str]) -> BTreeSet<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = fs::read_to_string(path).unwrap();
    let section = |heading: &&str| {
        page.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap()
    };
    let rows = headings.iter().map(section).flat_map(str::lines).filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split_once("` | ").unwrap());
    cells.map(|(name, rest)| (name.to_owned(), rest.split(' ').next().unwrap().to_owned())).collect()
}

/// The names and types of all registered metrics, also of those without a sample: the text output omits these, so they are read
/// from the debug output.
fn registered(metrics: &Metrics) -> BTreeSet<(String, String)> {
    let shown = format!("{metrics:?}");
    let all = shown.split("Descriptor { name: \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, metrics).unwrap();
    all.map(|name| {
        // A family without samples has no type in the text. All families here are of counters, except for these.
        let is_gauge = text.contains(&format!("# TYPE {name} gauge"))
            || ["rouse_xds_resources", "rouse_xds_load_envoys"].contains(&name);
        if is_gauge {
            (name.to_owned(), "gauge".to_owned())
        } else if name == "rouse_xds_ack_seconds" {
            (name.to_owned(), "histogram".to_owned())
        } else {
            (format!("{name}_total"), "counter".to_owned())
        }
    })
    .collect()
}

#[test]
fn the_page_has_every_metric_of_load_reports_of_the_scaler_and_of_xds_and_no_other() {
    let mut metrics = Metrics::default();
    ReportClientMetrics::new(&mut metrics);
    ReportMetrics::new(&mut metrics);
    ScalerMetrics::new(&mut metrics);
    XdsMetrics::new(&mut metrics);
    EnvoyLoadMetrics::new(&mut metrics);
    let there = registered(&metrics);
    assert_eq!(there.len(), 20, "{metrics:?}");
    let headings = ["Metrics of load reports", "Metrics of the external scaler", "Metrics of xDS"];
    assert_eq!(told(&headings), there);
}
