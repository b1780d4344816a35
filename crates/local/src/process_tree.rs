//! The process tree below this process: adopts orphans (subreaper), reaps dead children, and kills all descendants.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

use crate::guardian_protocol::ExitStatus;

/// Makes this process the parent of every descendant whose own parent dies (child subreaper), so that none can escape with a
/// double fork or a session of its own.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Reaps dead children, and calls `reaped` for each. Returns whether any child is left alive.
pub(crate) fn reap(mut reaped: impl FnMut(Pid, ExitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => report_exit(pid, status, &mut reaped),
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Kills every descendant, and returns when none is left, or with an error if we may not kill one.
///
/// Only children are signalled: the pid of a child cannot be reused before we reap it, the pid of a grandchild can. The
/// children of a dead child become our children, and are signalled next.
pub(crate) fn end_all(mut reaped: impl FnMut(Pid, ExitStatus)) -> io::Result<()> {
    while reap(&mut reaped) {
        let children = children()?;
        let doomed = children.iter().filter(|pid| kill_process(**pid, Signal::KILL).is_ok()).count();
        if doomed > 0 {
            if let Ok(Some((pid, status))) = wait(WaitOptions::empty()) {
                report_exit(pid, status, &mut reaped);
            }
        } else if !children.is_empty() {
            // We may not kill a setuid program, and waiting for it could take for ever.
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
    }
    Ok(())
}

fn report_exit(pid: Pid, status: WaitStatus, reaped: &mut impl FnMut(Pid, ExitStatus)) {
    if let Some(code) = status.exit_status() {
        reaped(pid, ExitStatus::Code(code));
    } else if let Some(signal) = status.terminating_signal() {
        reaped(pid, ExitStatus::Signal(signal));
    }
}

/// Our children, including zombies.
fn children() -> io::Result<Vec<Pid>> {
    let us = getpid();
    Ok(all()?.filter(|pid| parent(*pid) == Some(us)).collect())
}

/// Every process that we can see.
fn all() -> io::Result<impl Iterator<Item = Pid>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?)))
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parent_in_stat(&String::from_utf8_lossy(&stat))
}

/// The parent in the text of `/proc/PID/stat`: `PID (NAME) STATE PARENT …`. The name may contain any character.
fn parent_in_stat(stat: &str) -> Option<Pid> {
    let (_, after_name) = stat.rsplit_once(')')?;
    Pid::from_raw(after_name.split_whitespace().nth(1)?.parse().ok()?)
}

/// Kills every process whose environment contains `mark` (`NAME=value`), for when the guardian itself was killed and its
/// processes are no longer descendants of ours. Returns how many it killed.
#[cfg(target_os = "linux")]
pub(crate) fn end_marked(mark: &str) -> usize {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    let end = |pid: Pid| {
        // Open the pidfd before reading the environment: otherwise the pid could belong to another process by then.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        (marked && pid != getpid()).then(|| pidfd_send_signal(&process, Signal::KILL).ok())?
    };
    all().map_or(0, |all| all.filter_map(end).count())
}

/// Not supported on this platform.
#[cfg(not(target_os = "linux"))]
pub(crate) fn end_marked(_mark: &str) -> usize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_with_any_process_name() {
        let cases = [
            ("7 (sh) S 4 7 7 0", Pid::from_raw(4)),
            ("7 (a) b) (c)) Z 5 7 7 0", Pid::from_raw(5)),
            ("7 (\u{fffd} 1 2 3) R 6 7", Pid::from_raw(6)),
            ("1 (init) S 0 1", None),
            ("7 (sh", None),
            ("", None),
        ];
        for (stat, expected) in cases {
            assert_eq!(parent_in_stat(stat), expected, "{stat:?}");
        }
    }
}
