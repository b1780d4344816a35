//! Allocates addresses for local pods: a free port on 127.0.0.1, or a loopback address of its own for a fixed port.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first port that needs no privileges.
const FIRST_PORT: u16 = 1024;
/// The preferred first port: above the ports that people choose for their own servers.
const PREFERRED_PORT: u16 = 20_000;
/// A range with fewer ports than this is not used.
const ENOUGH_PORTS: u16 = 1_000;
/// The default of Linux, for when the range cannot be read.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// Pods with a fixed port get addresses in 127.64.0.0/10, away from 127.0.0.1, 127.0.0.53 and other known ones.
const FIRST_HOST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
const HOSTS: u32 = 1 << 22;
/// How many loopback addresses are tried before the port counts as taken on all of them.
const HOST_TRIES: usize = 1024;

/// Why there is no address for a pod.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Every port is taken.
    #[error("no free port on 127.0.0.1 from {} to {}", .0.start(), .0.end())]
    NoPort(RangeInclusive<u16>),
    /// Another process has the port on all loopback addresses.
    #[error(
        "port {0} is taken on every loopback address: another process listens on 0.0.0.0:{0} (an app with a fixed port must \
         listen on $HOST only, or use `port: auto`)"
    )]
    Taken(u16),
    /// The operating system refused.
    #[error("cannot listen on {address}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Leases addresses to pods, each to one pod at a time.
#[derive(Debug, Clone)]
pub struct AddressPool {
    ports: RangeInclusive<u16>,
    given: Arc<Mutex<Given>>,
}

#[derive(Debug)]
struct Given {
    leased: BTreeSet<SocketAddr>,
    /// Where to search next. It advances, so that the address of a pod that is gone is reused last: a client may still try
    /// to reach that pod.
    next_port: u64,
    next_host: u64,
}

/// A leased address. Dropping it gives the address back.
#[derive(Debug)]
pub struct Lease {
    address: SocketAddr,
    given: Arc<Mutex<Given>>,
    _claim: Claim,
}

/// Reserves an address against every other `rouse` on this machine, also before its pod listens: otherwise the other's pod
/// could answer our probe. An abstract Unix socket, which ends with this process and leaves no file.
#[derive(Debug)]
struct Claim {
    #[cfg(target_os = "linux")]
    _name: std::os::unix::net::UnixListener,
}

impl Claim {
    /// `None` if another process has reserved it.
    #[cfg(target_os = "linux")]
    fn on(address: SocketAddr) -> Option<Self> {
        use std::os::linux::net::SocketAddrExt as _;
        let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("rouse-pod-{address}")).ok()?;
        std::os::unix::net::UnixListener::bind_addr(&name).ok().map(|name| Self { _name: name })
    }

    #[cfg(not(target_os = "linux"))]
    fn on(_address: SocketAddr) -> Option<Self> {
        Some(Self {})
    }
}

impl AddressPool {
    /// Uses ports outside the ephemeral range: a client that probes a port of that range can get the same port as its source,
    /// and connect to itself. `seed`, any random number, selects where to begin, so that two `rouse` processes do not compete
    /// for the same ports.
    pub fn new(seed: u64) -> Self {
        let system = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
        let ephemeral = system.as_deref().and_then(parse_range).unwrap_or(EPHEMERAL);
        Self::from_ports(outside(&ephemeral), seed)
    }

    fn from_ports(ports: RangeInclusive<u16>, seed: u64) -> Self {
        let given = Given { leased: BTreeSet::new(), next_port: seed >> 32, next_host: seed & 0xffff_ffff };
        Self { ports, given: Arc::new(Mutex::new(given)) }
    }

    /// For `port: auto`: a free port on 127.0.0.1.
    pub fn auto(&self) -> Result<Lease, AddressError> {
        self.free_port(Ipv4Addr::LOCALHOST)
    }

    /// A free port on `ip`, for a second process of the pod that has this address.
    pub fn free_port(&self, ip: Ipv4Addr) -> Result<Lease, AddressError> {
        let count = u64::from(self.ports.end() - self.ports.start()) + 1;
        let mut given = lock(&self.given);
        for _ in 0..count {
            let offset = u16::try_from(given.next_port % count).unwrap_or_default();
            given.next_port = given.next_port.wrapping_add(1);
            let address = SocketAddr::from((ip, self.ports.start().saturating_add(offset)));
            if !given.leased.contains(&address)
                && let Some(claim) = Claim::on(address)
                && try_listen(address)?
            {
                return Ok(self.lease(given, address, claim));
            }
        }
        Err(AddressError::NoPort(self.ports.clone()))
    }

    /// For `port: NUMBER`: that port on a loopback address of its own.
    pub fn fixed(&self, port: u16) -> Result<Lease, AddressError> {
        let mut given = lock(&self.given);
        for _ in 0..HOST_TRIES {
            let offset = u32::try_from(given.next_host % u64::from(HOSTS)).unwrap_or_default();
            given.next_host = given.next_host.wrapping_add(1);
            let address = SocketAddr::from((Ipv4Addr::from(FIRST_HOST + offset), port));
            // Looks like a network or broadcast address, which some programs refuse.
            let odd = matches!(offset % 256, 0 | 255);
            if !odd
                && !given.leased.contains(&address)
                && let Some(claim) = Claim::on(address)
                && try_listen(address)?
            {
                return Ok(self.lease(given, address, claim));
            }
        }
        Err(AddressError::Taken(port))
    }

    fn lease(&self, mut given: MutexGuard<'_, Given>, address: SocketAddr, claim: Claim) -> Lease {
        given.leased.insert(address);
        Lease { address, given: Arc::clone(&self.given), _claim: claim }
    }
}

impl Lease {
    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.given).leased.remove(&self.address);
    }
}

fn lock(given: &Mutex<Given>) -> MutexGuard<'_, Given> {
    given.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the address is free. Returns an error if another address would fail too.
fn try_listen(address: SocketAddr) -> Result<bool, AddressError> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(source) => Err(AddressError::Refused { address, source }),
    }
}

/// Parses two numbers: the first and the last ephemeral port.
fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (low, high) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (low <= high).then_some(low..=high)
}

/// The ports for pods: below the ephemeral range; if there are too few, above it; if there are too few there too, all ports.
fn outside(ephemeral: &RangeInclusive<u16>) -> RangeInclusive<u16> {
    let below = |first: u16| first..=ephemeral.start().saturating_sub(1);
    let above = ephemeral.end().saturating_add(1)..=u16::MAX;
    let enough = |ports: &RangeInclusive<u16>| ports.end().saturating_sub(*ports.start()) >= ENOUGH_PORTS;
    [below(PREFERRED_PORT), below(FIRST_PORT), above]
        .into_iter()
        .find(enough)
        .unwrap_or(FIRST_PORT..=u16::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn ports_lie_outside_the_ephemeral_ones_where_there_is_room() {
        let cases = [
            (32_768..=60_999, 20_000..=32_767),
            (21_500..=65_535, 20_000..=21_499),
            (20_500..=60_999, 1_024..=20_499),
            (10_000..=65_000, 1_024..=9_999),
            (1_024..=60_999, 61_000..=65_535),
            (1_024..=65_535, 1_024..=65_535),
            (0..=65_535, 1_024..=65_535),
        ];
        for (ephemeral, expected) in cases {
            assert_eq!(outside(&ephemeral), expected, "{ephemeral:?}");
        }
    }

    #[test]
    fn the_systems_range_is_understood_or_refused() {
        assert_eq!(parse_range("32768\t60999\n"), Some(32_768..=60_999));
        for bad in ["", "1", "a b", "2 1", "1 70000"] {
            assert_eq!(parse_range(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn no_address_is_given_twice_at_a_time_however_many_ask() {
        let addresses = AddressPool::new(7 << 32);
        let ask = |_| {
            let addresses = addresses.clone();
            thread::spawn(move || {
                let leases = (0..20).map(|n| if n % 2 == 0 { addresses.auto() } else { addresses.fixed(0) });
                leases.map(Result::unwrap).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..8).map(ask).collect();
        let leases: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let distinct: BTreeSet<_> = leases.iter().map(Lease::address).collect();
        assert_eq!((leases.len(), distinct.len()), (160, 160));
        let auto: Vec<_> = distinct.iter().filter(|address| address.ip() == Ipv4Addr::LOCALHOST).collect();
        assert_eq!(auto.len(), 80);
        assert!(auto.iter().all(|address| addresses.ports.contains(&address.port())));
        drop(leases);
        assert!(lock(&addresses.given).leased.is_empty());
    }

    #[test]
    fn a_taken_port_is_not_given_and_running_out_is_an_error() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let addresses = AddressPool::from_ports(port..=port, 0);
        let error = addresses.auto().unwrap_err().to_string();
        assert!(error.contains(&port.to_string()), "{error}");
        drop(other);
        let lease = addresses.auto().unwrap();
        assert!(addresses.auto().is_err());
        drop(lease);
        addresses.auto().unwrap();
    }

    #[test]
    fn an_address_that_was_given_back_is_the_last_to_be_given_again() {
        let addresses = AddressPool::new(9 << 32);
        let first = addresses.auto().unwrap().address();
        let others: Vec<_> = (0..100).map(|_| addresses.auto().unwrap().address()).collect();
        assert!(!others.contains(&first));
    }

    #[test]
    fn a_fixed_port_that_is_taken_everywhere_says_what_the_app_must_do() {
        let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = everywhere.local_addr().unwrap().port();
        let error = AddressPool::new(1).fixed(port).unwrap_err().to_string();
        assert!(error.contains(&format!("0.0.0.0:{port}")) && error.contains("$HOST"), "{error}");
    }

    #[test]
    fn loopback_addresses_wrap_around_and_look_like_hosts() {
        let addresses = AddressPool::from_ports(1..=1, u64::from(HOSTS) - 3);
        let hosts = [(); 4].map(|()| addresses.fixed(0).unwrap());
        let hosts = hosts.map(|lease| lease.address().ip().to_string());
        assert_eq!(hosts, ["127.127.255.253", "127.127.255.254", "127.64.0.1", "127.64.0.2"]);
    }
}
