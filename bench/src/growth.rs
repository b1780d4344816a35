//! The cost of a request in Rouse with growing numbers of routes, services and endpoints; by design it stays the same.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use crate::args::{Format, Growth as Ask};
use crate::child::Running;
use crate::generated_config::{self, HOST, SERVING, Size};
use crate::h2load::Kept;
use crate::load::{ListenerKind, Load, ProxyAddress, Scenario};
use crate::matrix::report::{self, one};
use crate::matrix::{self, Cell, Held, ProxyUnderTest, Rule, Run, summarise};
use crate::proxy::WORKERS;
use crate::role::data_plane;
use crate::rouse::{Rouse, binary};
use crate::stats::{Spread, float};
use crate::table::columns;
use crate::{Result, ports, tools};

const PATIENCE: Duration = Duration::from_mins(1);
const CONNECTIONS: u32 = 50;

/// The groups: what grows, and the members. The first member is the reference of its group.
const AXES: [(&str, &[&str]); 4] = [
    ("routes, to 1 service with 1 endpoint", &[SMALLEST, "1,000 routes", MOST_ROUTES]),
    ("services, with 10,000 routes and 1 endpoint each", &[MOST_ROUTES, "100 services", "10,000 services"]),
    ("endpoints of 1 service, with 10 routes", &[SMALLEST, "10 endpoints", "1,000 endpoints"]),
    ("the data plane by itself, and in rouse up", &[SMALLEST, UP]),
];
const SMALLEST: &str = "10 routes, 1 service, 1 endpoint";
const MOST_ROUTES: &str = "10,000 routes, 1 service";
const UP: &str = "rouse up";

/// Routes, services, endpoints.
const SIZES: [(&str, [u32; 3]); 7] = [
    (SMALLEST, [10, 1, 1]),
    ("1,000 routes", [1_000, 1, 1]),
    (MOST_ROUTES, [10_000, 1, 1]),
    ("100 services", [10_000, 100, 1]),
    ("10,000 services", [10_000, 10_000, 1]),
    ("10 endpoints", [10, 1, 10]),
    ("1,000 endpoints", [10, 1, 1_000]),
];

const SCENARIO: Scenario = Scenario {
    name: "50 conns, 1 KiB",
    entrance: ListenerKind::Http1,
    load: Load::Kept(Kept { connections: CONNECTIONS, streams: None, path: "/" }),
    requests: 60_000,
    // Enough that both workers have a connection to almost every one of 1,000 endpoints; idle ones last only 3 s.
    before: 20_000,
};

/// Measures and prints.
pub(crate) fn run(ask: &Ask) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (_upstream, port) = upstream(folder.path())?;
    let mut proxies =
        SIZES.iter().map(|(name, size)| start(name, *size, port)).collect::<Result<Vec<_>>>()?;
    proxies.push(up(&binary(ask.matrix.common.rouse.as_deref())?, folder.path())?);
    let runs = matrix::run(&proxies, &[SCENARIO.scaled(ask.matrix.requests)], ask.matrix.rounds)?;
    let rule = Rule::FIXED;
    let axes: Vec<Axis> = AXES.iter().map(|&(name, members)| axis(name, members, &runs, &rule)).collect();
    match ask.matrix.common.output {
        Format::Json => {
            let all = json!({"rule": rule, "axes": axes, "runs": runs});
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
        Format::Text => {
            println!(
                "CPU µs for each request, and as a multiple of the first of its group in the same round"
            );
            println!("{}", text(&axes, &runs));
            print!("{}", report::legend(&rule));
        }
    }
    Ok(())
}

/// The result of one group.
#[derive(Debug, Serialize)]
struct Axis {
    name: &'static str,
    cells: Vec<Cell>,
}

fn axis(name: &'static str, members: &[&str], runs: &[Run], rule: &Rule) -> Axis {
    let part: Vec<Run> = runs.iter().filter(|run| members.contains(&run.proxy.as_str())).cloned().collect();
    let mut cells = members.first().map_or_else(Vec::new, |first| summarise(&part, first, rule));
    // In the order of the group, not of the runs.
    cells.sort_by_key(|cell| members.iter().position(|&member| member == cell.proxy));
    Axis { name, cells }
}

/// A line for each group, and its members below.
fn text(axes: &[Axis], runs: &[Run]) -> String {
    let dash = || "–".to_owned();
    let row = |cell: &Cell| {
        let ratio = cell.ratio.as_ref().map_or_else(dash, |ratio| one(ratio, cell.marked));
        let made = made(runs, &cell.proxy).map_or_else(dash, |made| format!("{made:.0}"));
        vec![format!("  {}", cell.proxy), one(&cell.cpu_us, cell.marked), ratio, made]
    };
    let rows = axes
        .iter()
        .flat_map(|axis| std::iter::once(vec![axis.name.to_owned()]).chain(axis.cells.iter().map(row)));
    columns(&["", "CPU µs", "multiple", "new conns to pods in a run"], &rows.collect::<Vec<_>>())
}

/// The median number of connections that were opened in a run, without those of the load.
fn made(runs: &[Run], proxy: &str) -> Option<f64> {
    let runs = runs.iter().filter(|run| run.proxy == proxy);
    let made: Vec<f64> = runs.map(|run| float(run.connections.saturating_sub(CONNECTIONS.into()))).collect();
    Some(Spread::of(&made)?.median)
}

/// The upstream server, on all addresses of this machine, because each pod has its own.
fn upstream(folder: &Path) -> Result<(Running, u16)> {
    let port = ports::free_on(Ipv4Addr::UNSPECIFIED)?.port();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("upstream").arg("--nginx").arg(tools::need("nginx", "nginx-light")?);
    command.arg("--folder").arg(folder).env("HOST", "0.0.0.0").env("PORT", port.to_string());
    let mut running = Running::start("the server behind all", &mut command)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    running.until("listens", PATIENCE, |_| TcpStream::connect(address).ok())?;
    Ok((running, port))
}

fn start(name: &str, [routes, services, endpoints]: [u32; 3], port: u16) -> Result<ProxyUnderTest> {
    eprintln!("starting: {name}");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["data-plane", "--port", &port.to_string(), "--routes", &routes.to_string()]);
    command.args(["--services", &services.to_string(), "--endpoints", &endpoints.to_string()]);
    let mut running = Running::start(name, &mut command)?;
    let address = running.until("listens", PATIENCE, |running| {
        let lines = running.lines();
        lines.iter().find_map(|line| line.strip_prefix("listening on http://")?.parse().ok())
    })?;
    let http1 = Some(ProxyAddress { address, host: data_plane::host(), certificate: None });
    Ok(ProxyUnderTest { name: name.to_owned(), http1, h2c: None, tls: None, held: Held::Peer(running) })
}

/// `rouse up` itself, to show that the data plane alone is comparable.
fn up(binary: &Path, folder: &Path) -> Result<ProxyUnderTest> {
    let size = Size { routes: 10, services: 1, endpoints: 1 };
    let rouse = Rouse::start(binary, &generated_config::apps(size, folder)?, None, &["--workers", WORKERS])?;
    rouse.pods(SERVING, 1)?;
    let http1 = Some(ProxyAddress { address: rouse.address, host: HOST.to_owned(), certificate: None });
    Ok(ProxyUnderTest { name: UP.to_owned(), http1, h2c: None, tls: None, held: Held::Rouse(rouse) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(proxy: &str, round: u32, cpu_us: f64, connections: u64) -> Run {
        Run {
            round,
            scenario: SCENARIO.name,
            proxy: proxy.to_owned(),
            cpu_us,
            per_second: 1.0,
            failed: 0,
            foreign_share: 0.0,
            connections,
            handshakes: None,
        }
    }

    #[test]
    fn all_variants_take_part_and_only_one_thing_grows_at_a_time() {
        let size = |name: &str| SIZES.iter().find(|(of, _)| *of == name).map(|(_, size)| *size);
        for (name, _) in SIZES {
            assert!(AXES.iter().any(|(_, members)| members.contains(&name)), "{name}");
        }
        for (name, members) in AXES {
            let sizes: Vec<[u32; 3]> = members.iter().filter_map(|name| size(name)).collect();
            assert!(members.iter().all(|&member| member == UP || size(member).is_some()), "{name}");
            let grows = |at: usize| sizes.windows(2).any(|pair| pair[0][at] < pair[1][at]);
            let grow = (0..3).filter(|&at| grows(at)).count();
            assert_eq!(grow, usize::from(members.len() > 2), "{name}");
        }
    }

    #[test]
    fn a_group_is_compared_with_its_own_first() {
        let runs: Vec<Run> = (0..3)
            .flat_map(|round| {
                [("b", 40.0), ("a", 20.0), ("other", 1.0)].map(|(who, cpu)| run(who, round, cpu, 50))
            })
            .collect();
        let axis = axis("letters", &["a", "b"], &runs, &Rule::FIXED);
        let seen: Vec<(&str, f64)> =
            axis.cells.iter().map(|cell| (cell.proxy.as_str(), cell.ratio.unwrap().median)).collect();
        assert_eq!(seen, [("a", 1.0), ("b", 2.0)]);
        let text = text(&[axis], &runs);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1] == "letters" && lines[2].starts_with("  a") && lines[3].starts_with("  b"),
            "{text}"
        );
    }

    #[test]
    fn connections_of_the_load_are_not_those_to_pods() {
        let runs = [run("a", 0, 1.0, 50), run("a", 1, 1.0, 60), run("a", 2, 1.0, 40), run("b", 0, 1.0, 99)];
        assert_eq!(made(&runs, "a"), Some(0.0));
        assert_eq!(made(&runs, "b"), Some(49.0));
        assert_eq!(made(&runs, "c"), None);
    }
}
