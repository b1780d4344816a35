//! Finds free ports below the ephemeral range: a client could take a port of that range before its server restarts, and
//! a connection to it could connect to itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::Result;

/// A free loopback address. No address is returned twice.
pub(crate) fn free() -> Result<SocketAddr> {
    free_on(Ipv4Addr::LOCALHOST)
}

/// The same on another address, or on all.
pub(crate) fn free_on(ip: Ipv4Addr) -> Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + u16::try_from(std::process::id() % 5_000)?;
    let next = || SocketAddr::from((ip, first + NEXT.fetch_add(1, Ordering::Relaxed)));
    let found = (0..2_000).map(|_| next()).find(|address| TcpListener::bind(address).is_ok());
    found.ok_or_else(|| "there is no free port".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        assert_ne!(free().unwrap(), free().unwrap());
    }
}
