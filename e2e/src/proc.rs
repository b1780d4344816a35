//! Processes in `/proc`: parents, descendants, zombies, TCP connections, peak memory.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::process::{Pid, Signal, kill_process};

/// A process, identified by its pid and its start time, since pids are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    began: u64,
}

impl Process {
    /// The process that has this pid now.
    pub fn of(pid: u32) -> Option<Self> {
        stat(pid).map(|stat| Self { pid, began: stat.began })
    }

    /// Its parent.
    pub fn parent(&self) -> Option<u32> {
        stat(self.pid).filter(|stat| stat.began == self.began).map(|stat| stat.parent)
    }

    /// What the kernel calls it.
    pub fn name(&self) -> String {
        fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default().trim_end().to_owned()
    }

    /// Whether it still runs. A zombie does not; [`zombies`] finds those.
    pub fn runs(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.began == self.began && !stat.zombie)
    }
}

struct Stat {
    parent: u32,
    began: u64,
    zombie: bool,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A process name may contain any character, also parentheses.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or_default();
    Some(Stat { zombie: field(0) == "Z", parent: field(1).parse().ok()?, began: field(19).parse().ok()? })
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All running processes with `name=value` in their environment, whatever their parent and session.
pub fn marked(name: &str, value: &str) -> Vec<Process> {
    let mark = format!("{name}={value}");
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all().filter(is_marked).filter_map(Process::of).filter(Process::runs).collect()
}

/// The descendants of `pid` that have exited and have not been reaped.
pub fn zombies(pid: u32) -> Vec<Process> {
    let is_zombie = |process: &Process| stat(process.pid).is_some_and(|stat| stat.zombie);
    descendants(pid).into_iter().filter(is_zombie).collect()
}

/// The children of `pid`, their children, and so on.
pub fn descendants(pid: u32) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    for pid in all() {
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(Process { pid, began: stat.began });
        }
    }
    let mut found = Vec::new();
    let mut open = vec![pid];
    while let Some(next) = open.pop() {
        let of_next = children.remove(&next).unwrap_or_default();
        open.extend(of_next.iter().map(|child| child.pid));
        found.extend(of_next);
    }
    found
}

/// Sends a signal to one process, by its pid.
pub fn signal(pid: u32, signal: Signal) {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.unwrap_or_else(|| panic!("{pid} is not a valid pid"));
    kill_process(process, signal).unwrap_or_else(|error| panic!("cannot signal {pid}: {error}"));
}

/// The remote addresses of a process's TCP connections, established or being established.
pub fn connections(pid: u32) -> Vec<SocketAddr> {
    sockets(pid).into_iter().map(|(_, remote)| remote).collect()
}

/// The local and the remote address of each TCP connection of a process.
pub fn sockets(pid: u32) -> Vec<(SocketAddr, SocketAddr)> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |link: fs::DirEntry| {
        let to = fs::read_link(link.path()).ok()?;
        Some(to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let own: HashSet<String> = links.filter_map(inode).collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        // `connection` skips the header line, as it skips every line that is not a connection.
        found.extend(text.lines().filter_map(|line| connection(line, &own)));
    }
    found
}

/// The two addresses in a line of `/proc/net/tcp`, if it is a connection of one of these sockets.
fn connection(line: &str, own: &HashSet<String>) -> Option<(SocketAddr, SocketAddr)> {
    const ESTABLISHED: &str = "01";
    const SYN_SENT: &str = "02";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    let connected = own.contains(inode) && [ESTABLISHED, SYN_SENT].contains(&state);
    connected.then_some((socket_address(local)?, socket_address(remote)?))
}

/// `0100007F:1F90`: each four bytes of the address are a number in the byte order of this machine.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    let address = match <[u8; 4]>::try_from(&*bytes) {
        Ok(four) => IpAddr::from(Ipv4Addr::from(four)),
        Err(_) => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(&*bytes).ok()?)).to_canonical(),
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

/// The peak memory of a process since [`Memory::watch`].
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    before: u64,
}

impl Memory {
    /// Resets the peak and measures from now on.
    pub fn watch(pid: u32) -> Self {
        // Writing 5 resets the peak.
        fs::write(format!("/proc/{pid}/clear_refs"), "5")
            .unwrap_or_else(|error| panic!("cannot reset the peak of {pid}: {error}"));
        Self { pid, before: kilobytes(pid, "VmRSS") }
    }

    /// The peak, in KiB.
    pub fn peak(&self) -> u64 {
        kilobytes(self.pid, "VmHWM")
    }

    /// The growth to the peak, in KiB.
    pub fn grown(&self) -> u64 {
        kilobytes(self.pid, "VmHWM").saturating_sub(self.before)
    }
}

fn kilobytes(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_else(|error| panic!("{pid} has no status: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or_else(|| panic!("no {field} in the status of {pid}"))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_process_is_seen_to_be_connected_until_it_closes() {
        let mut pairs = Vec::new();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let to = listener.local_addr().unwrap();
            pairs.push((TcpStream::connect(to).unwrap(), to, listener));
        }
        let pid = std::process::id();
        for (stream, to, _) in pairs {
            let ends = (stream.local_addr().unwrap(), to);
            assert!(sockets(pid).contains(&ends), "{ends:?} among {:?}", sockets(pid));
            drop(stream);
            assert!(!connections(pid).contains(&to), "{to} among {:?}", connections(pid));
        }
    }
}
