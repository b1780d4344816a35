//! What a request costs in Rouse and in its peers: processor time, memory of idle connections, system calls.

mod memory;
mod peers;
mod syscalls;

use std::fs;

use serde::Serialize;
use serde_json::json;

use crate::args::{Format, Proxy as Ask};
use crate::h2load::Kept;
use crate::load::{Load, Scenario};
use crate::matrix::{self, Contestant, Rule, report, summarise};
use crate::svg;
use crate::table::columns;
use crate::{Result, tools};

pub(crate) use peers::WORKERS;

/// Who is 1.
const ROUSE: &str = "rouse";

const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "50 conns, 1 KiB", load: kept(50, None, "/"), requests: 40_000 },
    Scenario { name: "500 conns, 1 KiB", load: kept(500, None, "/"), requests: 40_000 },
    Scenario { name: "16 conns, 1 MiB", load: kept(16, None, "/large"), requests: 2_000 },
    Scenario { name: "new conn each", load: Load::Fresh(50), requests: 10_000 },
    Scenario { name: "h2c, 16 conns × 10", load: kept(16, Some(10), "/"), requests: 40_000 },
];

const fn kept(connections: u32, streams: Option<u32>, path: &'static str) -> Load {
    Load::Kept(Kept { connections, streams, path })
}

/// Something that was measured once for each contestant.
#[derive(Debug, Serialize)]
struct Figure {
    contestant: String,
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
    let contestants = peers::start(ask, folder.path())?;
    let memory = memory::of_idle_connections(&contestants)?;
    let scenarios = SCENARIOS.map(|scenario| scenario.scaled(ask.matrix.requests));
    let runs = matrix::run(&contestants, &scenarios, ask.matrix.rounds)?;
    let syscalls = if let Some(strace) = tools::find("strace") {
        syscalls::per_request(&strace, &contestants, folder.path())
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
            println!("{}", report::text(&cells, ROUSE, &rule));
            print!("{}", figures(&contestants, &memory, &syscalls));
        }
    }
    Ok(())
}

fn figures(contestants: &[Contestant], memory: &[Figure], syscalls: &[Figure]) -> String {
    let row = |contestant: &Contestant| {
        let mut row = vec![contestant.name.clone(), "–".to_owned(), "–".to_owned(), "–".to_owned()];
        for figure in memory.iter().chain(syscalls).filter(|one| one.contestant == contestant.name) {
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
    let rows: Vec<Vec<String>> = contestants.iter().map(row).collect();
    columns(&["", "PSS KiB, fresh", "with 1,000 idle conns", "system calls for each request"], &rows)
}
