//! For error texts: finds where a pod that is not ready listens instead of its own address.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The address that the pod with the first process `pid` listens on instead of `address`; `None` if that is not known, or
/// if it listens on `address`. Prefers an address with the right port.
pub(crate) fn elsewhere(pid: u32, address: SocketAddr) -> Option<SocketAddr> {
    let sockets = sockets(pid);
    let tables = [format!("/proc/{pid}/net/tcp"), format!("/proc/{pid}/net/tcp6")];
    let tables = tables.iter().filter_map(|path| fs::read_to_string(path).ok());
    let all: Vec<SocketAddr> = tables.flat_map(|table| listeners(&table, &sockets)).collect();
    if all.iter().any(|listener| covers(*listener, address)) {
        return None;
    }
    all.into_iter().min_by_key(|listener| (listener.port() != address.port(), *listener))
}

/// Whether a connection to `address` reaches `listener`.
fn covers(listener: SocketAddr, address: SocketAddr) -> bool {
    let (ip, port) = (listener.ip().to_canonical(), listener.port());
    port == address.port() && (ip == address.ip() || ip.is_unspecified())
}

/// The inodes of all sockets of a pod's process group.
fn sockets(pid: u32) -> HashSet<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return HashSet::new() };
    let group = |name: &str| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
    };
    let names = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let own = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && group(name) == Some(pid));
    own.filter_map(|name| fs::read_dir(format!("/proc/{name}/fd")).ok())
        .flatten()
        .filter_map(|file| {
            let target = fs::read_link(file.ok()?.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect()
}

/// The listening sockets in the text of `/proc/net/tcp` or `tcp6` whose inodes are among `sockets`.
fn listeners(table: &str, sockets: &HashSet<String>) -> Vec<SocketAddr> {
    const LISTEN: &str = "0A";
    let listener = |line: &str| {
        let mut cells = line.split_whitespace();
        let local = cells.nth(1)?;
        let (state, inode) = (cells.nth(1)?, cells.nth(5)?);
        (state == LISTEN && sockets.contains(inode)).then(|| address(local))?
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// `0100007F:0BB8` is 127.0.0.1:3000: the address in words of four bytes in this machine's order, the port as a number.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words =
        ip.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let words: Vec<u32> = words.collect::<Option<_>>()?;
    let ip = match *words {
        [word] => IpAddr::V4(Ipv4Addr::from(word.to_ne_bytes())),
        [a, b, c, d] => {
            let bytes: Vec<u8> = [a, b, c, d].iter().flat_map(|word| word.to_ne_bytes()).collect();
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn an_address_is_read_as_the_system_writes_it() {
        for (text, expected) in [
            ("0100007F:0BB8", Some("127.0.0.1:3000")),
            ("00000000:1F90", Some("0.0.0.0:8080")),
            ("00000000000000000000000001000000:0BB8", Some("[::1]:3000")),
            ("0000000000000000FFFF00000100007F:0050", Some("[::ffff:127.0.0.1]:80")),
            ("0100007F", None),
            ("0100007F:x", None),
            ("01:50", Some("1.0.0.0:80")),
            ("", None),
        ] {
            assert_eq!(address(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_listener_is_found_and_one_at_the_right_place_is_none_elsewhere() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let group = rustix::process::getpgrp().as_raw_pid().unsigned_abs();
        let own = sockets(group);
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        assert!(listeners(&table, &own).contains(&here), "{own:?} in {table}");
        assert!(covers(here, here) && covers(SocketAddr::from(([0, 0, 0, 0], here.port())), here));
        assert!(!covers(here, SocketAddr::from(([127, 64, 0, 1], here.port()))));
    }
}
