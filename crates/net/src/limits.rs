//! How many probes may be under way: in all, and to one host. A herd of starting pods must not become a herd of
//! probes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// The bounds, shared by all services. Whoever finds one reached waits in line.
#[derive(Debug)]
pub struct ProbeLimits {
    in_all: usize,
    per_host: usize,
    all: Semaphore,
    /// Only hosts that are being probed, or waited for.
    hosts: Mutex<HashMap<IpAddr, Host>>,
}

#[derive(Debug)]
struct Host {
    turns: Arc<Semaphore>,
    /// Who probes it or waits to. The host is forgotten with the last.
    users: usize,
}

impl ProbeLimits {
    /// At most `in_all` probes at a time, and `per_host` to one address; at least one of each.
    pub fn new(in_all: usize, per_host: usize) -> Self {
        let in_all = in_all.clamp(1, Semaphore::MAX_PERMITS);
        let per_host = per_host.clamp(1, in_all);
        Self { in_all, per_host, all: Semaphore::new(in_all), hosts: Mutex::default() }
    }

    /// How many probes are under way.
    pub fn in_flight(&self) -> usize {
        self.in_all.saturating_sub(self.all.available_permits())
    }

    /// Waits for the right to probe `ip`, first come first served. Dropping the turn gives it back.
    pub async fn turn(&self, ip: IpAddr) -> Turn<'_> {
        let seat = Seat::new(self, ip);
        // The host first: whoever waits for a busy host must not hold up the others. (Nobody closes the
        // semaphores, so neither wait can fail.)
        let host = Arc::clone(&seat.turns).acquire_owned().await.ok();
        let all = self.all.acquire().await.ok();
        Turn { _all: all, _host: host, _seat: seat }
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<IpAddr, Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ProbeLimits {
    fn default() -> Self {
        Self::new(256, 32)
    }
}

/// The right to send one probe.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Turn<'a> {
    _all: Option<SemaphorePermit<'a>>,
    _host: Option<OwnedSemaphorePermit>,
    _seat: Seat<'a>,
}

/// Keeps a host known while somebody probes it or waits to.
#[derive(Debug)]
struct Seat<'a> {
    limits: &'a ProbeLimits,
    ip: IpAddr,
    turns: Arc<Semaphore>,
}

impl<'a> Seat<'a> {
    fn new(limits: &'a ProbeLimits, ip: IpAddr) -> Self {
        let mut hosts = limits.hosts();
        let host = hosts
            .entry(ip)
            .or_insert_with(|| Host { turns: Arc::new(Semaphore::new(limits.per_host)), users: 0 });
        host.users += 1;
        Self { limits, ip, turns: Arc::clone(&host.turns) }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut hosts = self.limits.hosts();
        if let Some(host) = hosts.get_mut(&self.ip) {
            host.users -= 1;
            if host.users == 0 {
                hosts.remove(&self.ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_busy_host_does_not_hold_up_the_others() {
        let limits = ProbeLimits::new(2, 1);
        let first = now(pin!(limits.turn(A))).unwrap();
        let mut waits = pin!(limits.turn(A));
        assert!(now(waits.as_mut()).is_none());
        let other = now(pin!(limits.turn(B))).unwrap();
        assert_eq!(limits.in_flight(), 2);
        drop(first);
        let second = now(waits.as_mut()).unwrap();
        drop((second, other));
        assert_eq!(limits.in_flight(), 0);
    }

    #[test]
    fn whoever_gives_up_waiting_leaves_nothing_behind() {
        let limits = ProbeLimits::new(1, 1);
        let first = now(pin!(limits.turn(A))).unwrap();
        {
            assert!(now(pin!(limits.turn(A))).is_none());
            assert!(now(pin!(limits.turn(B))).is_none());
        }
        assert_eq!(limits.hosts().len(), 1);
        drop(first);
        assert!(limits.hosts().is_empty());
        assert_eq!(limits.in_flight(), 0);
    }
}
