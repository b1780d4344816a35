//! Finds the process that already listens on an address, in `/proc/net/tcp` and `/proc/PID/fd`.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The process that listens on the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// This process: the address was requested twice.
    Ourselves,
    /// Another process.
    Process {
        /// Its id.
        pid: u32,
        /// Its name.
        command: String,
    },
    /// A process of the user with this id, whose files we may not read.
    User(u32),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Ourselves => write!(f, "this process itself (pid {})", std::process::id()),
            Holder::Process { pid, command } => write!(f, "pid {pid} ({command})"),
            Holder::User(user) => write!(f, "a process of user {user}"),
        }
    }
}

/// Finds the process that listens on `address`, or on all addresses at its port. `None` if it cannot be determined.
pub(super) fn find(address: SocketAddr) -> Option<Holder> {
    let listening = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .find_map(|table| listening(&table, address))?;
    let Some(pid) = owner(&format!("socket:[{}]", listening.inode)) else {
        return Some(Holder::User(listening.user));
    };
    if pid == std::process::id() {
        return Some(Holder::Ourselves);
    }
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A process can choose any name, including terminal control sequences.
    let command = command.trim_end().escape_default().to_string();
    Some(Holder::Process { pid, command })
}

/// The process that has `socket` open, among those whose files we may read.
fn owner(socket: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|target| target == Path::new(socket))
    })
}

/// A line of the kernel's socket table.
#[derive(Debug, PartialEq, Eq)]
struct Listening {
    user: u32,
    inode: u64,
}

/// The listening socket in `table` (`/proc/net/tcp` or `tcp6`) that conflicts with `address`.
fn listening(table: &str, address: SocketAddr) -> Option<Listening> {
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, local, _, "0A", _, _, _, user, _, inode, ..] = columns.as_slice() else { return None };
        let (ip, port) = local.split_once(':')?;
        let (ip, port) = (parse_ip(ip)?, u16::from_str_radix(port, 16).ok()?);
        let clash = port == address.port()
            && (ip == address.ip().to_canonical() || ip.is_unspecified() || address.ip().is_unspecified());
        clash.then_some(Listening { user: user.parse().ok()?, inode: inode.parse().ok()? })
    })
}

/// An address as the kernel prints it: words of 32 bits in hexadecimal, each in the machine's byte order.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match text.len() {
        8 => word(0).map(|bytes| Ipv4Addr::from(bytes).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[cfg(target_endian = "little")]
    #[test]
    fn the_line_in_the_way_is_found() {
        let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n   \
                  1: 0100007F:1F91 0200007F:0050 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0\n   \
                  2: 00000000:1F92 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0\n";
        let v6 = "   0: 00000000000000000000000000000000:1F93 00000000000000000000000000000000:0000 0A 0:0 0:0 0  5        0 4714 1\n   \
                  1: 00000000000000000000000001000000:1F94 00000000000000000000000000000000:0000 0A 0:0 0:0 0  5        0 4715 1\n   \
                  2: 0000000000000000FFFF00000100007F:1F95 00000000000000000000000000000000:0000 0A 0:0 0:0 0  5        0 4716 1\n";
        for (table, address, inode) in [
            (v4, "127.0.0.1:8080", Some(4711)),
            (v4, "0.0.0.0:8080", Some(4711)),
            (v4, "127.0.0.2:8080", None),
            // Connected, not listening.
            (v4, "127.0.0.1:8081", None),
            (v4, "127.0.0.9:8082", Some(4713)),
            (v6, "127.0.0.1:8083", Some(4714)),
            (v6, "[::1]:8084", Some(4715)),
            (v6, "[::2]:8084", None),
            (v6, "127.0.0.1:8085", Some(4716)),
        ] {
            let table = format!("{HEAD}{table}");
            let found = listening(&table, address.parse().unwrap()).map(|line| line.inode);
            assert_eq!(found, inode, "{address}");
        }
    }

    #[test]
    fn a_table_of_another_shape_tells_nothing() {
        for table in ["", "x", HEAD, "0: 0100007F 0 0A 0 0 0 0 0 1", "0: 0é00007F:1F90 0 0A 0 0 0 0 0 1"] {
            assert_eq!(listening(table, "127.0.0.1:8080".parse().unwrap()), None, "{table}");
        }
    }
}
