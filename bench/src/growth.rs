//! What a request costs in Rouse as routes, services and endpoints grow in number: by design, the same.

use std::path::Path;

use serde_json::json;

use crate::Result;
use crate::args::{Format, Growth as Ask};
use crate::h2load::Kept;
use crate::load::{Door, Load, Scenario};
use crate::matrix::{self, Contestant, Held, Rule, report, summarise};
use crate::proxy::WORKERS;
use crate::rouse::{Rouse, binary};
use crate::site::{self, HOST, SERVING, Size};

/// The first is what the others are compared with.
const SIZES: [(&str, Size); 5] = [
    ("10 routes, 1 service, 1 endpoint", Size { routes: 10, services: 1, endpoints: 1 }),
    ("1,000 routes, 20 services", Size { routes: 1_000, services: 1, endpoints: 1 }),
    ("10,000 routes, 200 services", Size { routes: 10_000, services: 1, endpoints: 1 }),
    ("109 routes, 100 services", Size { routes: 109, services: 100, endpoints: 1 }),
    ("10 endpoints", Size { routes: 10, services: 1, endpoints: 10 }),
];

const SCENARIO: Scenario = Scenario {
    name: "50 conns, 1 KiB",
    load: Load::Kept(Kept { connections: 50, streams: None, path: "/" }),
    requests: 40_000,
};

/// Measures and prints.
pub(crate) fn run(ask: &Ask) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let rouse = binary(ask.matrix.common.rouse.as_deref())?;
    let start = |(name, size): &(&str, Size)| start(name, *size, &rouse, folder.path());
    let contestants = SIZES.iter().map(start).collect::<Result<Vec<_>>>()?;
    let runs = matrix::run(&contestants, &[SCENARIO.scaled(ask.matrix.requests)], ask.matrix.rounds)?;
    let (rule, reference) = (Rule::FIXED, SIZES[0].0);
    let cells = summarise(&runs, reference, &rule);
    match ask.matrix.common.output {
        Format::Json => {
            let all = json!({"rule": rule, "cells": cells, "runs": runs});
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
        Format::Text => print!("{}", report::text(&cells, reference, &rule)),
    }
    Ok(())
}

fn start(name: &str, size: Size, binary: &Path, folder: &Path) -> Result<Contestant> {
    eprintln!("starting rouse up: {name} ({} services)", size.services());
    let rouse = Rouse::start(binary, &site::apps(size, folder)?, &["--workers", WORKERS])?;
    rouse.pods(SERVING, size.endpoints)?;
    let http1 = Some(Door { address: rouse.address, host: HOST.to_owned() });
    Ok(Contestant { name: name.to_owned(), http1, h2c: None, held: Held::Rouse(rouse) })
}
