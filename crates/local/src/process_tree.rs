//! The process tree below this process: adopts orphans, reaps dead children, and ends all descendants.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

use crate::guardian_protocol::ExitStatus;

/// Makes this process the parent of every descendant whose own parent dies, so that none can slip away by forking
/// twice or by opening a session of its own.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Buries children that have died, and tells `buried` about each. Answers whether any child is left alive.
pub(crate) fn reap(mut buried: impl FnMut(Pid, ExitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => bury(pid, status, &mut buried),
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Ends every descendant, and returns when none is left that we may end.
///
/// Only children are signalled: a child's pid cannot be reused before we have reaped it, a
/// grandchild's can. The children of a dead child become our children, and their turn comes.
pub(crate) fn end_all(mut buried: impl FnMut(Pid, ExitStatus)) -> io::Result<()> {
    while reap(&mut buried) {
        let children = children()?;
        let doomed = children.iter().filter(|pid| kill_process(**pid, Signal::KILL).is_ok()).count();
        if doomed > 0 {
            if let Ok(Some((pid, status))) = wait(WaitOptions::empty()) {
                bury(pid, status, &mut buried);
            }
        } else if !children.is_empty() {
            // A setuid program is not ours to kill: waiting for it could take for ever.
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
    }
    Ok(())
}

fn bury(pid: Pid, status: WaitStatus, buried: &mut impl FnMut(Pid, ExitStatus)) {
    if let Some(code) = status.exit_status() {
        buried(pid, ExitStatus::Code(code));
    } else if let Some(signal) = status.terminating_signal() {
        buried(pid, ExitStatus::Signal(signal));
    }
}

/// Our children, dead ones that are not reaped yet included.
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

/// The parent in the text of a `/proc/PID/stat`: `PID (NAME) STATE PARENT …`. The name may hold anything.
fn parent_in_stat(stat: &str) -> Option<Pid> {
    let (_, after_name) = stat.rsplit_once(')')?;
    Pid::from_raw(after_name.split_whitespace().nth(1)?.parse().ok()?)
}

/// Ends every process whose environment holds `mark` (`NAME=value`). For when the guardian itself was killed, and
/// its processes have no parent of ours any more. Returns how many it found.
#[cfg(target_os = "linux")]
pub(crate) fn end_marked(mark: &str) -> usize {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    let end = |pid: Pid| {
        // First the handle, then the look: the pid could belong to another process by the time we signal it.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        (marked && pid != getpid()).then(|| pidfd_send_signal(&process, Signal::KILL).ok())?
    };
    all().map_or(0, |all| all.filter_map(end).count())
}

/// Not known how to find them here.
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
