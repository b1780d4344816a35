//! Prints the report of `rouse explain endpoints` as tables for people.

use std::io::{self, Write};

use anstyle::{AnsiColor, Effects, Style};
use rouse_core::endpoint::State;

use super::report::{PortReport, ServiceReport};
use crate::input::printable;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().effects(Effects::DIMMED);

/// Prints the services, an empty line between them.
pub(super) fn print(out: &mut dyn Write, reports: impl Iterator<Item = ServiceReport>) -> io::Result<()> {
    for (index, report) in reports.enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{BOLD}{}{BOLD:#}", printable(&report.service))?;
        for remark in &report.remarks {
            writeln!(out, "  {DIM}{}{DIM:#}", printable(remark))?;
        }
        if report.ports.is_empty() {
            writeln!(out, "  no TCP port: no EndpointSlice names one")?;
        }
        report.ports.iter().try_for_each(|port| print_port(out, port))?;
    }
    Ok(())
}

fn print_port(out: &mut dyn Write, port: &PortReport) -> io::Result<()> {
    let name = if port.port.is_empty() { "(unnamed)".to_owned() } else { printable(&port.port) };
    writeln!(out, "  port {BOLD}{name}{BOLD:#}: {}", summary(&port.counts))?;
    if port.endpoints.is_empty() {
        return Ok(());
    }
    let pods: Vec<String> =
        port.endpoints.iter().map(|row| row.pod.as_deref().map_or("-".into(), printable)).collect();
    let width =
        |cells: &mut dyn Iterator<Item = usize>, title: &str| cells.max().unwrap_or(0).max(title.len());
    let address = width(&mut port.endpoints.iter().map(|row| row.address.len()), "ADDRESS");
    let pod = width(&mut pods.iter().map(|pod| pod.chars().count()), "POD");
    writeln!(
        out,
        "    {DIM}{:address$}  {:pod$}  {:8}  {:8}  {:3}  WHY{DIM:#}",
        "ADDRESS", "POD", "STATE", "ENVOY", "NEW"
    )?;
    for (row, name) in port.endpoints.iter().zip(&pods) {
        let style = style(row.state);
        let (envoy, new) = (row.envoy.unwrap_or("-"), if row.new_traffic { "yes" } else { "no" });
        writeln!(
            out,
            "    {:address$}  {name:pod$}  {style}{:8}{style:#}  {envoy:8}  {new:3}  {}",
            row.address, row.state, row.why
        )?;
    }
    Ok(())
}

fn summary(counts: &[(usize, State)]) -> String {
    let parts: Vec<String> = counts.iter().map(|(count, state)| format!("{count} {state}")).collect();
    if parts.is_empty() { "no endpoints".to_owned() } else { parts.join(", ") }
}

fn style(state: State) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match state {
        State::Ready => colour(AnsiColor::Green),
        State::Draining => colour(AnsiColor::Yellow),
        State::Starting => colour(AnsiColor::Cyan),
        State::Gone => DIM,
    }
}
