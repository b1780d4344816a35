//! Pushes: what a pod's sidecar reports about its own pod, and the order of two pushes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::endpoint::{PodRef, SlicePort};

/// One life of a sidecar process. A restarted container of the same pod gets a new one, so that its sequence
/// numbers may start over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId {
    /// When the process started, in milliseconds since the Unix epoch. Later is newer.
    pub started: u64,
    /// Random; tells apart two processes that started in the same millisecond.
    pub id: u64,
}

/// Why a text is not a [`BootId`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a boot: expected start time in milliseconds, a dash and a random id in hexadecimal")]
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

/// What a sidecar says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PushEvent {
    /// The app answers.
    Ready,
    /// The app does not answer; it may again.
    NotReady,
    /// The pod is leaving. Final for this boot.
    Draining,
}

/// The place of a push among the pushes of its pod.
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
    /// The pod that sent the push, which speaks only for itself.
    pub pod: PodRef,
    /// Its place among the pod's pushes.
    pub order: PushOrder,
    /// The pod's addresses.
    pub ips: Vec<IpAddr>,
    /// The service's ports on this pod.
    pub ports: Vec<SlicePort>,
    /// What it says.
    pub event: PushEvent,
}

impl Push {
    /// Every address that the push claims.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let at = |ip: IpAddr| self.ports.iter().map(move |port| SocketAddr::new(ip, port.number));
        self.ips.iter().flat_map(|&ip| at(ip)).collect()
    }
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    /// It is news and was taken in.
    Accepted,
    /// It is the newest word already; its lease starts anew.
    Renewed,
    /// It is older than what is known, or its pod is gone. The newest order seen, if any is remembered.
    Stale(Option<PushOrder>),
}

/// Why a push of a verified sender was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PushRefused {
    /// Pods that no slice has listed are bounded, or a storm of registrations would fill the memory.
    #[error(
        "the service already has {bound} pods that no EndpointSlice lists; raise the bound or wait for the slices"
    )]
    TooManyPods {
        /// The bound that was reached.
        bound: usize,
    },
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
