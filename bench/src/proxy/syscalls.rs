//! System calls per request, counted by strace in a separate run, because strace slows the proxy down.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;

use super::{Figure, Value, kept};
use crate::Result;
use crate::child::Running;
use crate::load::{ProxyAddress, send};
use crate::matrix::ProxyUnderTest;
use crate::stats::float;

const REQUESTS: u32 = 5_000;
const CONNECTIONS: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts for each proxy; a proxy that cannot be traced is reported as MISSING.
pub(super) fn per_request(strace: &Path, proxies: &[ProxyUnderTest], folder: &Path) -> Vec<Figure> {
    let mut figures = Vec::new();
    for proxy in proxies {
        let Some(address) = &proxy.http1 else { continue };
        eprintln!("system calls: {}", proxy.name);
        match counted(strace, &proxy.pids(), address, folder) {
            Ok(calls) => {
                let per_request = calls.iter().map(|call| call.per_request).sum();
                let value = Value::Syscalls { per_request };
                figures.push(Figure { proxy: proxy.name.clone(), value });
            }
            Err(error) => eprintln!("MISSING: system calls of {}: {error}", proxy.name),
        }
    }
    figures
}

/// One kind of system call.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) per_request: f64,
}

/// The system calls of these processes under load.
pub(super) fn counted(
    strace: &Path,
    pids: &[u32],
    address: &ProxyAddress,
    folder: &Path,
) -> Result<Vec<Call>> {
    let file = folder.join("strace");
    let mut command = Command::new(strace);
    command.args(["-c", "-f", "-o"]).arg(&file);
    for pid in pids {
        command.args(["-p", &pid.to_string()]);
    }
    let mut tracing = Running::start("strace", &mut command)?;
    let attached = |line: &String| line.contains("attached");
    tracing.until("is attached to all", PATIENCE, |tracing| {
        (tracing.lines().iter().filter(|&line| attached(line)).count() >= pids.len()).then_some(())
    })?;
    let outcome = send(kept(CONNECTIONS, None, "/"), address, REQUESTS)?;
    // strace detaches from the processes and writes its table.
    tracing.signal(Signal::INT);
    tracing.ended(PATIENCE)?;
    if outcome.failed > 0 {
        return Err(format!("{} requests failed", outcome.failed).into());
    }
    let calls = calls(&fs::read_to_string(&file)?, REQUESTS);
    if calls.is_empty() { Err("strace wrote no table".into()) } else { Ok(calls) }
}

/// All calls of strace's table: % time, seconds, usecs/call, calls, errors if any, syscall.
fn calls(table: &str, requests: u32) -> Vec<Call> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() >= 5 && row.last() != Some(&"total"));
    let call = |row: Vec<&str>| {
        let count: u64 = row.get(3)?.parse().ok()?;
        let name = (*row.last()?).to_owned();
        Some(Call { name, per_request: float(count) / float(requests.into()) })
    };
    rows.filter_map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_without_the_total() {
        let table = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.010000           2      5000           writev
 40.00    0.006000           1      4000        12 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.016000           1      9000        12 total
";
        let call = |name: &str, per_request| Call { name: name.to_owned(), per_request };
        assert_eq!(calls(table, 1_000), [call("writev", 5.0), call("recvfrom", 4.0)]);
        assert_eq!(calls("", 1_000), []);
    }
}
