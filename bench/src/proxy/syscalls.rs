//! System calls for each request, counted by strace in a run of its own: it slows everything down.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::{Figure, Value, kept};
use crate::Result;
use crate::child::Running;
use crate::load::{Door, send};
use crate::matrix::Contestant;
use crate::stats::float;

const REQUESTS: u32 = 5_000;
const CONNECTIONS: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(20);

/// Of each contestant that can be traced; who cannot is said.
pub(super) fn per_request(strace: &Path, contestants: &[Contestant], folder: &Path) -> Vec<Figure> {
    let mut figures = Vec::new();
    for contestant in contestants {
        let Some(door) = &contestant.http1 else { continue };
        eprintln!("system calls: {}", contestant.name);
        match one(strace, &contestant.pids(), door, folder) {
            Ok(per_request) => {
                let value = Value::Syscalls { per_request };
                figures.push(Figure { contestant: contestant.name.clone(), value });
            }
            Err(error) => eprintln!("MISSING: system calls of {}: {error}", contestant.name),
        }
    }
    figures
}

fn one(strace: &Path, pids: &[u32], door: &Door, folder: &Path) -> Result<f64> {
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
    let outcome = send(kept(CONNECTIONS, None, "/"), door, REQUESTS)?;
    // It lets go of the processes and writes its table.
    tracing.signal(Signal::INT);
    tracing.ended(PATIENCE)?;
    if outcome.failed > 0 {
        return Err(format!("{} requests failed", outcome.failed).into());
    }
    let calls = calls(&fs::read_to_string(&file)?).ok_or("strace wrote no table")?;
    Ok(float(calls) / float(REQUESTS.into()))
}

/// All calls of strace's table: % time, seconds, usecs/call, calls, errors if any, syscall.
fn calls(table: &str) -> Option<u64> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() >= 5 && row.last() != Some(&"total"));
    let counts: Vec<u64> = rows.filter_map(|row| row.get(3)?.parse().ok()).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_without_the_total() {
        let table = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.010000           2      5000           writev
 40.00    0.006000           1      4000        12 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.016000           1      9000        12 total
";
        assert_eq!(calls(table), Some(9_000));
        assert_eq!(calls(""), None);
    }
}
