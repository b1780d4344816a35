//! Push messages: readiness reports of a sidecar about its own pod, and their order.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::endpoint::{PodRef, SlicePort};

/// Identifies one run of a sidecar process. A restarted container of the same pod gets a new one, so its sequence numbers
/// can start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId {
    /// When the process started, in milliseconds since the Unix epoch. Later is newer.
    pub started: u64,
    /// Random; distinguishes two processes that started in the same millisecond.
    pub id: u64,
}

/// Why a text is not a [`BootId`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a boot id: expected the start time in milliseconds, a dash and a random id in hexadecimal"
)]
pub struct BadBoot(String);

impl FromStr for BootId {
    type Err = BadBoot;

    fn from_str(text: &str) -> Result<Self, BadBoot> {
        let parse = || {
            let (started, id) = text.split_once('-')?;
            // `from_str_radix` would take a sign.
            if started.starts_with('+') || id.starts_with('+') {
                return None;
            }
            Some(Self { started: started.parse().ok()?, id: u64::from_str_radix(id, 16).ok()? })
        };
        parse().ok_or_else(|| BadBoot(text.into()))
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.started, self.id)
    }
}

/// The event that a sidecar reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PushEvent {
    /// The app is ready.
    Ready,
    /// The app is not ready, but may become ready again.
    NotReady,
    /// The pod is leaving. Final for this boot.
    Draining,
}

/// The order of a push among the pushes of its pod: by boot, then by sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushOrder {
    /// The sidecar process.
    pub boot: BootId,
    /// Counts up within the boot.
    pub sequence: u64,
}

/// A push whose sender was verified: the pod exists, and the addresses and ports are its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The pod that sent the push. A pod can report only on itself.
    pub pod: PodRef,
    /// Its order among the pod's pushes.
    pub order: PushOrder,
    /// The pod's addresses.
    pub ips: Vec<IpAddr>,
    /// Whether the pod owns its addresses alone, so that its push replaces the pods that had them before. A pod on the network of
    /// its node shares them with others, and a pod that is being deleted may have lost them.
    pub owns_addresses: bool,
    /// The service's ports on this pod.
    pub ports: Vec<SlicePort>,
    /// The reported event.
    pub event: PushEvent,
}

impl Push {
    /// Every address (IP and port) that the push claims.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let at = |ip: IpAddr| self.ports.iter().map(move |port| SocketAddr::new(ip, port.number));
        self.ips.iter().flat_map(|&ip| at(ip)).collect()
    }
}

/// How a push was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    /// It is newer than the last one and was applied.
    Accepted,
    /// It equals the last one; its lease starts again.
    Renewed,
    /// It is older than the last one, or its pod is removed. Holds the newest known order, if there is one.
    Stale(Option<PushOrder>),
}

/// Why a push of a verified sender was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PushRefused {
    /// The limit on pods that no slice lists is reached. Without it, a flood of registrations would fill the memory.
    #[error(
        "the service already has {bound} pods that no EndpointSlice lists, which is the limit; raise it or wait for the slices"
    )]
    TooManyPods {
        /// The limit that was reached.
        bound: usize,
    },
    /// The push is not true any more: it was withdrawn again, before it replaced pods of other services.
    #[error("the pod or its Service changed while its registration was applied; send it again")]
    Outdated,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_reads_back_as_written() {
        let boot = BootId { started: 1_731_657_600_123, id: 0xfeed };
        assert_eq!(boot.to_string().parse(), Ok(boot));
        for bad in ["", "1", "-", "1-", "x-1", "1-x", "+1-1", "1-+1", "1-10000000000000000"] {
            assert_eq!(bad.parse::<BootId>(), Err(BadBoot(bad.into())));
        }
    }

    #[test]
    fn a_later_start_is_newer_with_any_random_id() {
        assert!(BootId { started: 2, id: 0 } > BootId { started: 1, id: u64::MAX });
    }
}
