//! CPU time, memory and connections of processes and of the whole machine, from `/proc`.
//!
//! CPU time of a process includes kernel work for it. On kernels without `IRQ_TIME_ACCOUNTING` that also includes network
//! work, which loopback does on behalf of the sender.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Result;
use crate::stats::float;

/// CPU time, in kernel ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd)]
pub(crate) struct Ticks(u64);

impl Ticks {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// What is left without `other`.
    pub(crate) fn without(self, other: Self) -> Self {
        self.since(other)
    }

    pub(crate) fn micros(self) -> f64 {
        float(self.0) * 1e6 / float(rustix::param::clock_ticks_per_second())
    }
}

impl std::iter::Sum for Ticks {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        Self(all.map(|ticks| ticks.0).sum())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Its own, over all its threads.
    own: Ticks,
    /// Of its children that have ended and that it waited for.
    ended: Ticks,
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<Stat> {
    // A process name may contain any character, also parentheses.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: u32::try_from(number(1)?).ok()?,
        own: Ticks(number(11)? + number(12)?),
        ended: Ticks(number(13)? + number(14)?),
    })
}

/// The children of each process.
fn families() -> HashMap<u32, Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    children
}

/// A process and its descendants, down to this many generations.
pub(crate) fn tree(pid: u32, generations: usize) -> Vec<u32> {
    let mut families = families();
    let (mut found, mut newest) = (vec![pid], vec![pid]);
    for _ in 0..generations {
        newest = newest.iter().flat_map(|pid| families.remove(pid).unwrap_or_default()).collect();
        found.extend(&newest);
    }
    found
}

/// More generations than any tree here has.
pub(crate) const ALL: usize = 16;

/// The time of these processes, over all their threads.
pub(crate) fn time_of(pids: &[u32]) -> Ticks {
    pids.iter().filter_map(|&pid| stat(pid)).map(|stat| stat.own).sum()
}

/// The CPU time of this program and its descendants, including those that have ended.
pub(crate) fn our_time() -> Ticks {
    let stats = tree(std::process::id(), ALL).into_iter().filter_map(stat);
    stats.map(|stat| [stat.own, stat.ended].into_iter().sum()).sum()
}

/// The busy time of all CPUs, including time that the hypervisor took (steal).
pub(crate) fn busy_time() -> Result<Ticks> {
    let text = fs::read_to_string("/proc/stat")?;
    parse_busy(&text).ok_or_else(|| "/proc/stat has no line for all processors".into())
}

fn parse_busy(text: &str) -> Option<Ticks> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guests are in user already.
    [0, 1, 2, 5, 6, 7].into_iter().map(|at| fields.get(at).copied().map(Ticks)).sum::<Option<Ticks>>()
}

/// How many connections were made on this machine since it started.
pub(crate) fn connections_opened() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/snmp")?;
    parse_opened(&text).ok_or_else(|| "/proc/net/snmp does not count connections".into())
}

fn parse_opened(text: &str) -> Option<u64> {
    // Names in one line, numbers in the next.
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_whitespace().zip(numbers.split_whitespace());
    pairs.find(|&(name, _)| name == "ActiveOpens")?.1.parse().ok()
}

/// The proportional set size (PSS) of these processes, in KiB.
pub(crate) fn proportional_kib(pids: &[u32]) -> u64 {
    let of = |pid: &u32| parse_pss(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?);
    pids.iter().filter_map(of).sum()
}

fn parse_pss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The resident memory of a process now and at its peak, in MiB.
pub(crate) fn memory(pid: u32) -> Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mib = |field: &str| {
        let mut lines = status.lines();
        let kib =
            lines.find_map(|line| line.strip_prefix(field)?.trim().strip_suffix("kB")?.trim().parse().ok());
        kib.map(|kib: f64| kib / 1024.0).ok_or_else(|| format!("process {pid} has no {field}"))
    };
    Ok((mib("VmRSS:")?, mib("VmHWM:")?))
}

/// Raises the limit of open files for this process and its children: every connection is a file.
pub(crate) fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Ignored: if it fails, the measurement with many connections reports it.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_with_any_name() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 0 1 2 3 4 100 20 30 4 20 0 1 0 99 0";
        let expected = Stat { parent: 3, own: Ticks(120), ended: Ticks(34) };
        assert_eq!(parse_stat(text), Some(expected));
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[test]
    fn idling_and_waiting_for_disks_is_not_busy() {
        assert_eq!(parse_busy("cpu  1 2 4 1000 1000 8 16 32 64 64\ncpu0 1 1 1"), Some(Ticks(63)));
        assert_eq!(parse_busy("cpu  1 2"), None);
    }

    #[test]
    fn connections_are_found_by_their_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: RtoMax ActiveOpens PassiveOpens\nTcp: -1 42 7\n";
        assert_eq!(parse_opened(text), Some(42));
        assert_eq!(parse_opened(&text.replace("ActiveOpens", "Other")), None);
        assert!(connections_opened().is_ok());
    }

    #[test]
    fn memory_is_the_proportional_one() {
        assert_eq!(parse_pss("x\nRss:  5 kB\nPss:      1234 kB\nPss_Anon: 1 kB\n"), Some(1234));
    }

    #[test]
    fn we_are_in_our_own_tree() {
        assert!(tree(std::process::id(), 0).contains(&std::process::id()));
        assert!(busy_time().unwrap() >= Ticks(1));
    }
}
