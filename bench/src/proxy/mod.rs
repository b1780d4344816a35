//! The cost of a request in Rouse and its peers: CPU time, memory of idle connections, system calls.

pub(crate) mod counts;
mod memory;
mod peers;
mod syscalls;

use std::fs;

use serde::Serialize;
use serde_json::json;

use crate::args::{Format, Handshake, Proxy as Ask};
use crate::h2load::Kept;
use crate::load::{ListenerKind, Load, Scenario};
use crate::matrix::{self, Cell, ProxyUnderTest, Rule, report, summarise};
use crate::svg;
use crate::table::columns;
use crate::{Result, tools};

pub(crate) use peers::WORKERS;

/// The reference: the proxy whose ratio is 1.
const ROUSE: &str = "rouse";

const SCENARIOS: [Scenario; 9] = [
    scenario("50 conns, 1 KiB", ListenerKind::Http1, kept(50, None, "/"), 40_000),
    scenario("500 conns, 1 KiB", ListenerKind::Http1, kept(500, None, "/"), 40_000),
    scenario("16 conns, 1 MiB", ListenerKind::Http1, kept(16, None, "/large"), 2_000),
    scenario("new conn each", ListenerKind::Http1, Load::Fresh(50), 10_000),
    scenario("h2c, 16 conns × 10", ListenerKind::H2c, kept(16, Some(10), "/"), 40_000),
    scenario("TLS 50 conns, 1 KiB", ListenerKind::Tls, kept(50, None, "/"), 40_000),
    scenario("TLS 16 conns, 1 MiB", ListenerKind::Tls, kept(16, None, "/large"), 1_500),
    scenario("TLS full handshake each", ListenerKind::Tls, Load::Handshakes(Handshake::Full, 16), 4_000),
    scenario(
        "TLS resumed handshake each",
        ListenerKind::Tls,
        Load::Handshakes(Handshake::Resumed, 16),
        4_000,
    ),
];

const fn scenario(name: &'static str, entrance: ListenerKind, load: Load, requests: u32) -> Scenario {
    Scenario { name, entrance, load, requests, before: 0 }
}

const fn kept(connections: u32, streams: Option<u32>, path: &'static str) -> Load {
    Load::Kept(Kept { connections, streams, path })
}

/// A value that is measured once per proxy.
#[derive(Debug, Serialize)]
struct Figure {
    proxy: String,
    #[serde(flatten)]
    value: Value,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Value {
    Memory { fresh_kib: u64, idle_connections: usize, with_connections_kib: u64 },
    Syscalls { per_request: f64 },
}

/// Measures and prints.
pub(crate) fn run(ask: &Ask) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let proxies = peers::start(ask, folder.path())?;
    let memory = memory::of_idle_connections(&proxies)?;
    let asked =
        |one: &&Scenario| ask.scenes.is_empty() || ask.scenes.iter().any(|asked| one.name.starts_with(asked));
    let scenarios: Vec<Scenario> =
        SCENARIOS.iter().filter(asked).map(|one| one.scaled(ask.matrix.requests)).collect();
    let runs = matrix::run(&proxies, &scenarios, ask.matrix.rounds)?;
    let syscalls = if let Some(strace) = tools::find("strace") {
        syscalls::per_request(&strace, &proxies, folder.path())
    } else {
        eprintln!("MISSING: strace (Debian: apt install strace): system calls are not counted");
        Vec::new()
    };
    let rule = Rule::FIXED;
    let cells = summarise(&runs, ROUSE, &rule);
    if let Some(file) = &ask.svg {
        fs::write(file, svg::chart("CPU for each request, in the proxy", &cells, ROUSE))?;
    }
    match ask.matrix.common.output {
        Format::Json => {
            let all = json!({
                "rule": rule, "cells": cells, "memory": memory, "syscalls": syscalls, "runs": runs,
            });
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
        Format::Text => {
            let names: Vec<&str> = proxies.iter().map(|one| one.name.as_str()).collect();
            // One table for both would be too wide.
            let secure = |cell: &Cell| {
                SCENARIOS.iter().any(|one| one.entrance == ListenerKind::Tls && one.name == cell.scenario)
            };
            let (secure, clear): (Vec<Cell>, Vec<Cell>) = cells.into_iter().partition(secure);
            for cells in [clear, secure].into_iter().filter(|cells| !cells.is_empty()) {
                println!("{}", report::tables(&cells, &names, ROUSE));
            }
            println!("{}", report::legend(&rule));
            print!("{}", figures(&proxies, &memory, &syscalls));
        }
    }
    Ok(())
}

fn figures(proxies: &[ProxyUnderTest], memory: &[Figure], syscalls: &[Figure]) -> String {
    let row = |proxy: &ProxyUnderTest| {
        let mut row = vec![proxy.name.clone(), "–".to_owned(), "–".to_owned(), "–".to_owned()];
        for figure in memory.iter().chain(syscalls).filter(|one| one.proxy == proxy.name) {
            match &figure.value {
                Value::Memory { fresh_kib, with_connections_kib, .. } => {
                    row[1] = fresh_kib.to_string();
                    row[2] = with_connections_kib.to_string();
                }
                Value::Syscalls { per_request } => row[3] = format!("{per_request:.2}"),
            }
        }
        row
    };
    let rows: Vec<Vec<String>> = proxies.iter().map(row).collect();
    columns(&["", "PSS KiB, fresh", "with 1,000 idle conns", "system calls for each request"], &rows)
}
