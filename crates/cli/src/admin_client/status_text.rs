//! Prints `rouse status` as tables for people: services, pods, and the last cold starts.

use std::fmt::Write as _;
use std::io;

use anstyle::{AnsiColor, Style};

use rouse_daemon::admin::report::{ColdStartView, ServicePhase, ServiceView};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const BAD: Style = AnsiColor::Red.on_default();

/// The phases of a cold start, as the API names them and as people read them.
const PHASES: [(&str, &str); 5] = [
    ("wake", "wake"),
    ("seen", "seen"),
    ("ready", "ready"),
    ("connect", "connect"),
    ("first_byte", "first byte"),
];

/// Writes the services, their pods, and the last cold starts.
pub(super) fn write(
    out: &mut dyn io::Write,
    services: &[ServiceView],
    cold: &[ColdStartView],
) -> io::Result<()> {
    let mut rows = vec![Row::head(["SERVICE", "STATE", "PODS", "IN FLIGHT", "HOLDS", "WHY"])];
    rows.extend(services.iter().map(|service| Row {
        style: state(service.state),
        cells: [
            service.service.clone(),
            service.state.as_str().to_owned(),
            pods(service),
            service.in_flight.to_string(),
            service.holds.to_string(),
            why(service),
        ],
    }));
    write_rows(out, &rows)?;
    let mut pods = vec![Row::head(["POD", "STATE", "ADDRESS", "PID", "IN FLIGHT", "SOURCE"])];
    pods.extend(services.iter().flat_map(|service| &service.endpoints).map(|pod| Row {
        style: Style::new(),
        cells: [
            pod.pod.clone(),
            pod.state.clone(),
            pod.address.clone(),
            pod.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            pod.in_flight.to_string(),
            pod.source.clone().unwrap_or_else(|| "-".to_owned()),
        ],
    }));
    if pods.len() > 1 {
        writeln!(out)?;
        write_rows(out, &pods)?;
    }
    for service in services {
        if let Some(trouble) = &service.trouble {
            writeln!(out, "\n{BAD}{}:{BAD:#} {trouble}", service.service)?;
        }
    }
    if !cold.is_empty() {
        writeln!(out, "\n{BOLD}LAST COLD STARTS{BOLD:#}")?;
        cold.iter().try_for_each(|cold| writeln!(out, "{}", cold_start(cold)))?;
    }
    Ok(())
}

/// `1/2`: one of two pods is ready. `1` if the desired number is not known.
fn pods(service: &ServiceView) -> String {
    match service.desired {
        Some(desired) => format!("{}/{desired}", service.ready),
        None => service.ready.to_string(),
    }
}

fn why(service: &ServiceView) -> String {
    let mut why = service.reason.clone();
    // The engine's reason also says so, as soon as it has decided.
    if let Some(pods) = service.pinned
        && !why.contains("pinned")
    {
        let end = if why.is_empty() { "" } else { "; " };
        why = format!("pinned at {pods}{end}{why}");
    }
    if service.rolling {
        why.push_str(if why.is_empty() { "replacing pods" } else { "; replacing pods" });
    }
    why
}

fn state(life: ServicePhase) -> Style {
    match life {
        ServicePhase::Serving => AnsiColor::Green.on_default(),
        ServicePhase::Waking | ServicePhase::Draining => AnsiColor::Yellow.on_default(),
        ServicePhase::Zero => DIM,
    }
}

/// `hello  240 ms, 12 s ago, served by hello-1 (probe): wake 0.1 · …`
fn cold_start(cold: &ColdStartView) -> String {
    let ago = ago(cold.ago_us);
    let mut line = match &*cold.outcome {
        "served" => format!("{}  {BOLD}{} ms{BOLD:#}, {ago} ago, ", cold.service, millis(cold.total_us)),
        outcome => {
            let after = seconds(cold.total_us);
            format!("{}  {BAD}{outcome} after {after}{BAD:#}, {ago} ago", cold.service)
        }
    };
    let by = cold.ready_by.as_ref().map(|source| format!(" (ready by {source})")).unwrap_or_default();
    // Writing to a String cannot fail.
    match (&*cold.outcome, &cold.pod) {
        ("served", Some(pod)) => write!(line, "served by {pod}{by}"),
        ("served", None) => write!(line, "served{by}"),
        (_, Some(pod)) => write!(line, ", by {pod}{by}"),
        (_, None) => Ok(()),
    }
    .ok();
    let phases: Vec<String> = PHASES
        .iter()
        .filter_map(|(key, word)| Some(format!("{word} {}", millis(*cold.phases_us.get(*key)?))))
        .collect();
    if !phases.is_empty() {
        write!(line, "{DIM}: {}{DIM:#}", phases.join(" · ")).ok();
    }
    line
}

fn millis(micros: u64) -> String {
    let tenths = micros.saturating_add(50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole @ 0..10, tenth @ 1..) => format!("{whole}.{tenth}"),
        (whole, _) => whole.to_string(),
    }
}

/// `5 s`, `0.3 s`.
fn seconds(micros: u64) -> String {
    let tenths = micros.saturating_add(50_000) / 100_000;
    match (tenths / 10, tenths % 10) {
        (whole @ 0..10, tenth @ 1..) => format!("{whole}.{tenth} s"),
        (whole, _) => format!("{whole} s"),
    }
}

fn ago(micros: u64) -> String {
    match micros / 1_000_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// A row of a table. `style` applies to the second cell, and to all cells of the first row.
struct Row<const N: usize> {
    style: Style,
    cells: [String; N],
}

impl<const N: usize> Row<N> {
    fn head(cells: [&str; N]) -> Self {
        Self { style: BOLD, cells: cells.map(str::to_owned) }
    }
}

fn write_rows<const N: usize>(out: &mut dyn io::Write, rows: &[Row<N>]) -> io::Result<()> {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.cells.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, width)) in row.cells.iter().zip(widths).enumerate() {
            let style = if number == 0 || column == 1 { row.style } else { Style::new() };
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()) + 2);
            let pad = if column + 1 == N { "" } else { &pad };
            write!(line, "{style}{cell}{style:#}{pad}").ok();
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anstream::StripStream;

    use super::*;
    use rouse_daemon::admin::report::PodView;

    #[test]
    fn a_service_its_pods_its_trouble_and_its_cold_starts_are_shown() {
        let pod = PodView {
            pod: "hello-1".into(),
            uid: "u".into(),
            address: "127.0.0.1:4000".into(),
            state: "Ready".into(),
            source: Some("probe".into()),
            in_flight: 2,
            pid: Some(77),
        };
        let service = ServiceView {
            service: "local/hello".into(),
            state: ServicePhase::Serving,
            holds: 3,
            in_flight: 2,
            requests: 9,
            desired: Some(2),
            ready: 1,
            pinned: Some(2),
            rolling: true,
            reason: "as asked".into(),
            trouble: Some("hello-2 exited with code 1".into()),
            stale: false,
            endpoints: vec![pod],
        };
        let cold = ColdStartView {
            service: "local/hello".into(),
            pod: Some("hello-1".into()),
            outcome: "served".into(),
            ready_by: Some("probe".into()),
            held_us: 1,
            wake_sent_us: None,
            pod_seen_us: None,
            pod_ready_us: None,
            connected_us: None,
            first_byte_us: None,
            phases_us: [("first_byte".to_owned(), 5000), ("wake".to_owned(), 140)].into(),
            total_us: 231_000,
            ago_us: 12_000_000,
        };
        let mut out = StripStream::new(Vec::new());
        write(&mut out, &[service], &[cold]).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert_eq!(
            text,
            "\
SERVICE      STATE    PODS  IN FLIGHT  HOLDS  WHY
local/hello  serving  1/2   2          3      pinned at 2; as asked; replacing pods

POD      STATE  ADDRESS         PID  IN FLIGHT  SOURCE
hello-1  Ready  127.0.0.1:4000  77   2          probe

local/hello: hello-2 exited with code 1

LAST COLD STARTS
local/hello  231 ms, 12 s ago, served by hello-1 (ready by probe): wake 0.1 · first byte 5
"
        );
    }

    #[test]
    fn a_cold_start_that_failed_says_so_and_after_how_long() {
        let cold = ColdStartView {
            service: "local/hello".into(),
            pod: None,
            outcome: "failed".into(),
            ready_by: None,
            held_us: 1,
            wake_sent_us: Some(6000),
            pod_seen_us: None,
            pod_ready_us: None,
            connected_us: None,
            first_byte_us: None,
            phases_us: [("wake".to_owned(), 5999)].into(),
            total_us: 5_003_000,
            ago_us: 12_000_000,
        };
        let mut out = StripStream::new(Vec::new());
        write(&mut out, &[], &[cold]).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert!(text.contains("local/hello  failed after 5 s, 12 s ago: wake 6"), "{text}");
    }
}
