//! System calls and allocations per request of Rouse, which hardly depend on the machine, to detect regressions.

use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::syscalls::{Call, counted};
use super::{Result, kept, peers};
use crate::args::{Common, Format};
use crate::load::send;
use crate::table::columns;
use crate::{certificate, child, generated_config, tools};

/// Long enough to build the test.
const PATIENCE: Duration = Duration::from_mins(15);
/// Rarer calls are left out of the table, such as those for opening connections.
const RARE: f64 = 0.05;

/// Connections and requests of the warm-up.
const WARM_UP: (u32, u32) = (50, 10_000);

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Allocations {
    count: u64,
    bytes: u64,
}

/// Counts and prints.
pub(crate) fn run(ask: &Common) -> Result<()> {
    let allocations = allocations()?;
    let folder = tempfile::tempdir()?;
    let certificate = certificate::make(generated_config::HOST, folder.path())?;
    let (rouse, _) = peers::rouse(ask, &certificate, folder.path())?;
    let address = rouse.http1.as_ref().ok_or("rouse up has no HTTP listener")?;
    // Warm up: a process that has just started allocates memory.
    send(kept(WARM_UP.0, None, "/"), address, WARM_UP.1)?;
    let calls = counted(&tools::need("strace", "strace")?, &rouse.pids(), address, folder.path())?;
    match ask.output {
        Format::Json => {
            let all = json!({"system_calls": calls, "allocations": allocations});
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
        Format::Text => print!("{}", text(&calls, &allocations)),
    }
    Ok(())
}

/// Runs the test that counts and limits allocations, and reads its output.
fn allocations() -> Result<Allocations> {
    eprintln!("allocations: cargo test -p rouse-proxy --test allocations");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "-p", "rouse-proxy", "--test", "allocations", "--", "--nocapture"]);
    let said = child::output("the test of allocations", &mut cargo, PATIENCE)?;
    parse(&said).ok_or_else(|| format!("cannot parse the output of the allocations test:\n{said}").into())
}

/// "43 allocations and 5901 bytes for each request", anywhere in a line: the harness may print before it.
fn parse(said: &str) -> Option<Allocations> {
    let line = said.lines().find_map(|line| line.strip_suffix(" bytes for each request"))?;
    let (count, bytes) = line.split_once(" allocations and ")?;
    let count = count.rsplit(' ').next()?;
    Some(Allocations { count: count.parse().ok()?, bytes: bytes.parse().ok()? })
}

fn text(calls: &[Call], Allocations { count, bytes }: &Allocations) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let all: f64 = calls.iter().map(|call| call.per_request).sum();
    let often = calls.iter().filter(|call| call.per_request >= RARE);
    let often = often.map(|call| row(&format!("  {}", call.name), format!("{:.2}", call.per_request)));
    let rows: Vec<Vec<String>> = std::iter::once(row("system calls", format!("{all:.2}")))
        .chain(often)
        .chain([row("allocations", count.to_string()), row("bytes allocated", bytes.to_string())])
        .collect();
    columns(&["rouse", "for each request"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_found_in_what_the_test_says() {
        let expected = Some(Allocations { count: 43, bytes: 5901 });
        for said in [
            "running 1 test\n43 allocations and 5901 bytes for each request\ntest it ... ok\n",
            "running 1 test\ntest it ... 43 allocations and 5901 bytes for each request\nok\n",
        ] {
            assert_eq!(parse(said), expected, "{said}");
        }
        assert_eq!(parse("test it ... ok"), None);
    }

    #[test]
    fn rare_calls_count_but_have_no_row() {
        let call = |name: &str, per_request| Call { name: name.to_owned(), per_request };
        let calls = [call("writev", 2.0), call("accept4", 0.01)];
        let text = text(&calls, &Allocations { count: 43, bytes: 5901 });
        assert!(text.contains("2.01") && text.contains("writev") && text.contains("5901"), "{text}");
        assert!(!text.contains("accept4"), "{text}");
    }
}
