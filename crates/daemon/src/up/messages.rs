//! The lines that `rouse up` prints. Scripts read them too, so their beginnings do not change.

use std::net::SocketAddr;

use rouse_local::engine::{AppEvent, AppEventKind};
use rouse_local::output::Line;
use rouse_proxy::routing::HostPattern;

use super::listen::near;
use super::source::{ConfigSource, DEFAULT_FILE};
use crate::listeners::ListenAddresses;
use crate::process::style::{BAD, BOLD, DIM, GOOD, color, colored, millis};
use crate::rouse_yaml::{App, Config};

/// The first lines: the addresses, and how to send a request to each app.
pub fn greeting(source: &ConfigSource, config: &Config, addresses: &ListenAddresses) -> Vec<String> {
    let mut lines = Vec::new();
    if *source == ConfigSource::Demo {
        lines.push(format!("there is no {DEFAULT_FILE} here, so this is the built-in demo"));
    }
    lines
        .extend(addresses.plain.iter().map(|address| format!("listening on {BOLD}http://{address}{BOLD:#}")));
    lines.extend(
        addresses.secure.iter().map(|address| format!("listening on {BOLD}https://{address}{BOLD:#}")),
    );
    lines.push(format!("admin on http://{}", addresses.admin));
    lines.extend(addresses.xds.map(|address| format!("xds for Envoys on {address}")));
    if let Some(address) = addresses.plain.first() {
        lines.extend(config.apps.iter().map(|app| invitation(app, *address)));
    }
    lines.push(format!(
        "{DIM}apps at zero start with their first request; `rouse status` shows what runs, Ctrl-C stops it all{DIM:#}"
    ));
    match source {
        ConfigSource::Demo => lines.push(format!(
            "{DIM}your own: put `apps: {{hello: {{command: [python3, -m, http.server, $PORT, --bind, $HOST]}}}}` into \
             {DEFAULT_FILE}, \
             and see `rouse up --help`{DIM:#}"
        )),
        ConfigSource::File { name, .. } => {
            lines.push(format!("{DIM}changes of {name} apply as soon as it is saved{DIM:#}"));
        }
    }
    lines
}

/// A command that sends a request to the app.
fn invitation(app: &App, address: SocketAddr) -> String {
    let port = address.port();
    let near = near(address);
    let path = app.paths.first().map_or_else(|| "/".to_owned(), ToString::to_string);
    let name = colored(app.name.as_str());
    match app.hosts.first() {
        Some(HostPattern::Exact(host)) if host.ends_with(".localhost") => format!(
            "{name}: curl -H 'Host: {host}' http://{near}{path}   or, in a browser, http://{host}:{port}{path}"
        ),
        Some(HostPattern::Exact(host)) => format!("{name}: curl -H 'Host: {host}' http://{near}{path}"),
        Some(HostPattern::Below(host)) => format!("{name}: curl -H 'Host: any.{host}' http://{near}{path}"),
        Some(HostPattern::Any) | None => format!("{name}: curl http://{near}{path}"),
    }
}

/// The line for an event, if it gets one.
pub fn event(AppEvent { service, what, .. }: &AppEvent) -> Option<String> {
    let said = match what {
        AppEventKind::Wake => "woken by a request".to_owned(),
        AppEventKind::Scaled { from, to, reason } => format!("scaled from {from} to {to}: {reason}"),
        AppEventKind::Started { pod, pid, address } => {
            format!("{DIM}{pod} started: pid {pid}, {address}{DIM:#}")
        }
        AppEventKind::Ready { pod, after } => {
            format!("{GOOD}{pod} ready after {} ms{GOOD:#}", millis(*after))
        }
        AppEventKind::Stopping { pod } => format!("{DIM}{pod} is stopping{DIM:#}"),
        AppEventKind::Exited { pod, exit, expected: true } => format!("{DIM}{pod} {exit}{DIM:#}"),
        AppEventKind::Exited { pod, exit, expected: false } => format!("{BAD}{pod} {exit}{BAD:#}"),
        AppEventKind::Failed { reason } => format!("{BAD}cannot start a pod{BAD:#}: {reason}"),
        AppEventKind::RolledOut => "all pods are replaced".to_owned(),
        AppEventKind::Removed => "removed".to_owned(),
        AppEventKind::Declared => return None,
    };
    Some(format!("{}: {said}", colored(service.name())))
}

/// What a pod printed.
pub fn output(app: &str, Line { pod, text, .. }: &Line) -> String {
    let color = color(app);
    // The second reset ends colours that the pod may have left on.
    format!("{color}{pod} |{color:#} {text}{}", anstyle::Reset)
}

/// The line in place of output that came too fast.
pub fn missed(app: &str, count: u64) -> String {
    format!("{}: … {count} lines not shown; `rouse logs {app}` has the last ones", colored(app))
}
