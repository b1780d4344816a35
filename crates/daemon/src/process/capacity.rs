//! Derives the default limits of connections and memory from the process's limits of open files and memory.

use rouse_core::hold::HoldLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::memory;

/// The most open files that the limits are derived from, even if the system allows more.
const MOST_FILES: u64 = 400_000;
/// Open files for other uses than connections: listeners, the admin API, probes, the API server, logs. At most a quarter of
/// all.
const RESERVED: u64 = 512;
/// The memory of one connection with a request: 17 KiB in plain text, about twice as much over TLS.
const CONNECTION: u64 = 32 * 1024;
/// Connections may use one part in this many of the memory. The rest is for bodies, held requests and everything else.
const PART: u64 = 2;
/// The memory of one connection of a pod that registers itself: buffers of TLS and of a head, and a body.
const REGISTRATION: u64 = 48 * 1024;
/// Connections for registrations may use one part in this many of the open files that are not reserved.
const REGISTRATION_FILES_PART: u64 = 8;
/// Connections for registrations may use one part in this many of the memory.
const REGISTRATION_MEMORY_PART: u64 = 16;
/// The most connections for registrations: pods connect in turns beyond that.
const MOST_REGISTRATIONS: u64 = 8_192;
/// Buffered bodies may use one part in this many of the memory, and no more than [`MOST_BUFFERS`].
const BUFFERS_PART: u64 = 4;
const MOST_BUFFERS: u64 = 64 << 20;
/// Held requests may use one part in this many of the memory, and no more than the default of [`HoldLimits`].
const HOLDS_PART: u64 = 4;

/// Raises the soft limit of open files, which is often 1024 for programs that use `select`.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Ignore a failure: fewer connections are better than none.
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
    }
}

/// Whether pods may register at the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registrations {
    None,
    Accepted,
}

/// How many connections the process can have. A request uses one on each side, so both sides get the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionCapacity {
    /// Client connections, limited by open files only.
    pub(crate) by_files: usize,
    /// Client connections, limited by open files and memory.
    pub(crate) connections: usize,
    /// Connections to pods, limited by open files and memory.
    pub(crate) pod_connections: usize,
    /// Connections of pods that register themselves. The limits above leave room for them.
    pub(crate) registrations: usize,
    /// Bytes of bodies in buffers.
    pub(crate) buffers: usize,
    /// Bytes that requests keep while they wait.
    pub(crate) holds: usize,
}

impl ConnectionCapacity {
    /// The capacity of this process with its current limits. Pods do not register at it.
    pub(crate) fn now() -> Self {
        Self::with(Registrations::None)
    }

    /// The same for a process that pods may register at.
    pub(crate) fn with(registrations: Registrations) -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::of(files, memory::limit(), registrations)
    }

    fn of(files: u64, memory: Option<u64>, registrations: Registrations) -> Self {
        let files = files.min(MOST_FILES);
        let (free, memory) = (files - RESERVED.min(files / 4), memory.unwrap_or(u64::MAX));
        let registrations = match registrations {
            Registrations::None => 0,
            Registrations::Accepted => (free / REGISTRATION_FILES_PART)
                .min(memory / REGISTRATION_MEMORY_PART / REGISTRATION)
                .clamp(1, MOST_REGISTRATIONS),
        };
        let side = count(free.saturating_sub(registrations) / 2);
        let memory_of_connections = (memory / PART).saturating_sub(registrations * REGISTRATION);
        let connections = side.min(count(memory_of_connections / CONNECTION));
        Self {
            by_files: side,
            connections,
            pod_connections: connections,
            registrations: usize::try_from(registrations).unwrap_or(usize::MAX),
            buffers: count((memory / BUFFERS_PART).min(MOST_BUFFERS)),
            holds: count(memory / HOLDS_PART).min(HoldLimits::default().bytes),
        }
    }

    /// The number of connections to pods for `connections` client connections: at least as many, within the limit of open
    /// files.
    pub(crate) fn pod_connections_for(&self, connections: usize) -> usize {
        self.pod_connections.max(connections).min(self.by_files)
    }
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_limit_follows_files_and_memory() {
        let check = |files, memory, side| {
            let capacity = ConnectionCapacity::of(files, memory, Registrations::None);
            let found = (capacity.connections, capacity.pod_connections);
            assert_eq!(found, (side, side), "{files} files, {memory:?} bytes");
        };
        check(1024, None, 384);
        check(1024, Some(8 << 30), 384);
        check(1 << 20, Some(8 << 30), 131_072);
        check(1 << 20, Some(128 << 20), 2048);
        check(u64::MAX, None, 199_744);
        check(0, Some(0), 1);
    }

    #[test]
    fn registrations_have_a_part_of_files_and_memory_that_nothing_else_uses() {
        let check = |files, memory, registrations, side| {
            let capacity = ConnectionCapacity::of(files, memory, Registrations::Accepted);
            assert_eq!(
                (capacity.registrations, capacity.connections),
                (registrations, side),
                "{files} {memory:?}"
            );
            let open = capacity.registrations + 2 * capacity.by_files;
            assert!(open as u64 <= files.clamp(3, MOST_FILES), "{files} files, {open} used");
        };
        check(1024, None, 96, 336);
        check(20_000, Some(8 << 30), 2_436, 8_526);
        check(1 << 20, Some(8 << 30), 8_192, 118_784);
        check(1 << 20, Some(128 << 20), 170, 1_793);
        check(u64::MAX, None, 8_192, 195_648);
        check(0, Some(0), 1, 1);
    }

    #[test]
    fn what_bodies_and_waiting_requests_may_take_follows_memory() {
        let check = |memory, buffers, holds| {
            let capacity = ConnectionCapacity::of(1024, memory, Registrations::None);
            assert_eq!((capacity.buffers, capacity.holds), (buffers, holds), "{memory:?} bytes");
        };
        check(None, 64 << 20, 256 << 20);
        check(Some(8 << 30), 64 << 20, 256 << 20);
        check(Some(512 << 20), 64 << 20, 128 << 20);
        check(Some(128 << 20), 32 << 20, 32 << 20);
        check(Some(0), 1, 1);
    }

    #[test]
    fn a_pod_connection_is_there_for_each_client_that_an_operator_allows() {
        let capacity = ConnectionCapacity::of(1 << 20, Some(128 << 20), Registrations::None);
        assert_eq!(capacity.pod_connections_for(100), 2048);
        assert_eq!(capacity.pod_connections_for(5000), 5000);
        assert_eq!(capacity.pod_connections_for(1_000_000), capacity.by_files);
    }
}
