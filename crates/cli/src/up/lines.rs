//! The lines that `rouse up` prints. Scripts read them too, so their beginnings do not change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use rouse_core::timeline::{ColdStart, Outcome, Phase};
use rouse_local::engine::{Event, What};
use rouse_local::output::Line;
use rouse_proxy::route::HostPattern;

use super::source::{DEFAULT_FILE, Source};
use crate::config::{App, Config};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Neither red nor black nor white: one means trouble, and the others are not seen everywhere.
const APPS: [AnsiColor; 8] = [
    AnsiColor::Cyan,
    AnsiColor::Magenta,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::Green,
    AnsiColor::BrightCyan,
    AnsiColor::BrightMagenta,
    AnsiColor::BrightBlue,
];

/// Where it listens, and what to do now.
pub fn greeting(
    source: &Source,
    config: &Config,
    listen: &[SocketAddr],
    secure: Option<SocketAddr>,
    admin: SocketAddr,
) -> Vec<String> {
    let mut lines = Vec::new();
    if *source == Source::Demo {
        lines.push(format!("there is no {DEFAULT_FILE} here, so this is the built-in demo"));
    }
    lines.extend(listen.iter().map(|address| format!("listening on {BOLD}http://{address}{BOLD:#}")));
    lines.extend(secure.map(|address| format!("listening on {BOLD}https://{address}{BOLD:#}")));
    lines.push(format!("admin on http://{admin}"));
    if let Some(address) = listen.first() {
        lines.extend(config.apps.iter().map(|app| invitation(app, *address)));
    }
    lines.push(format!(
        "{DIM}apps at zero start with their first request; `rouse status` shows what runs, Ctrl-C stops it all{DIM:#}"
    ));
    match source {
        Source::Demo => lines.push(format!(
            "{DIM}your own: put `apps: {{hello: {{command: [python3, -m, http.server, $PORT, --bind, $HOST]}}}}` into {DEFAULT_FILE}, \
             and see `rouse up --help`{DIM:#}"
        )),
        Source::File { name, .. } => {
            lines.push(format!("{DIM}changes of {name} apply as soon as it is saved{DIM:#}"));
        }
    }
    lines
}

/// How an app is asked for.
fn invitation(app: &App, address: SocketAddr) -> String {
    let port = address.port();
    let near = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let near = SocketAddr::new(near, port);
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

/// What happened, if anybody wants to know.
pub fn event(Event { service, what, .. }: &Event) -> Option<String> {
    let said = match what {
        What::Wake => "woken by a request".to_owned(),
        What::Scaled { from, to, reason } => format!("scaled from {from} to {to}: {reason}"),
        What::Started { pod, pid, address } => {
            format!("{DIM}{pod} started: pid {pid}, {address}{DIM:#}")
        }
        What::Ready { pod, after } => format!("{GOOD}{pod} ready after {} ms{GOOD:#}", millis(*after)),
        What::Stopping { pod } => format!("{DIM}{pod} is told to stop{DIM:#}"),
        What::Exited { pod, exit, expected: true } => format!("{DIM}{pod} {exit}{DIM:#}"),
        What::Exited { pod, exit, expected: false } => format!("{BAD}{pod} {exit}{BAD:#}"),
        What::Failed { reason } => format!("{BAD}cannot start a pod{BAD:#}: {reason}"),
        What::RolledOut => "all pods are replaced".to_owned(),
        What::Removed => "removed".to_owned(),
        What::Declared => return None,
    };
    Some(format!("{}: {said}", colored(service.name())))
}

/// Where the time of a cold start went.
pub fn cold_start(cold: &ColdStart) -> String {
    let phases: Vec<String> =
        cold.phases().map(|(phase, took)| format!("{} {}", word(phase), millis(took))).collect();
    let (name, total, phases) = (colored(cold.service.name()), millis(cold.total()), phases.join(" · "));
    let colon = if phases.is_empty() { "" } else { ": " };
    match cold.outcome {
        Outcome::Waiting | Outcome::Served => {
            format!("{name}: {BOLD}cold start {total} ms{BOLD:#}{colon}{phases}")
        }
        Outcome::Unanswered => {
            format!("{name}: {WARNING}cold start without an answer, {total} ms{WARNING:#}{colon}{phases}")
        }
        Outcome::Failed => {
            format!(
                "{name}: {WARNING}cold start failed after {}{WARNING:#}{colon}{phases}",
                seconds(cold.total())
            )
        }
        Outcome::Abandoned => {
            let after = seconds(cold.total());
            format!(
                "{name}: {WARNING}cold start in vain, all clients left after {after}{WARNING:#}{colon}{phases}"
            )
        }
    }
}

fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::FirstByte => "first byte",
        other => other.as_str(),
    }
}

/// Milliseconds with as many digits as say something: `0.3`, `7.2`, `231`.
fn millis(took: Duration) -> String {
    let tenths = (took.as_micros() + 50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole @ 0..10, tenth @ 1..) => format!("{whole}.{tenth}"),
        (whole, _) => whole.to_string(),
    }
}

/// What people count in seconds: `5 s`, `0.3 s`.
fn seconds(took: Duration) -> String {
    let tenths = (took.as_millis() + 50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole @ 0..10, tenth @ 1..) => format!("{whole}.{tenth} s"),
        (whole, _) => format!("{whole} s"),
    }
}

/// What a pod printed.
pub fn output(app: &str, Line { pod, text, .. }: &Line) -> String {
    let color = color(app);
    // The second reset is for what the pod may have left switched on.
    format!("{color}{pod} |{color:#} {text}{}", anstyle::Reset)
}

/// Lines of an app that came too fast.
pub fn missed(app: &str, count: u64) -> String {
    format!("{}: … {count} lines not shown; `rouse logs {app}` has the last ones", colored(app))
}

/// Something is not as it should be, but things go on.
pub fn warning(text: &str) -> String {
    format!("{WARNING}warning:{WARNING:#} {text}")
}

/// Something went wrong.
pub fn error(text: &str) -> String {
    format!("{BAD}error:{BAD:#} {text}")
}

fn colored(app: &str) -> String {
    let color = color(app);
    format!("{color}{app}{color:#}")
}

/// An app has the same colour everywhere and always.
fn color(app: &str) -> Style {
    let place = app.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    APPS.get(place % APPS.len()).copied().unwrap_or(AnsiColor::Cyan).on_default()
}
