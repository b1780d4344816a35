//! Tracks the known peers: those that DNS names, and those that peers themselves list.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use rouse_core::time::Moment;

/// The most peers. More could only be an error.
pub const MAX_PEERS: usize = 256;
/// How long a list of a peer counts without a newer one: peers that are gone must not keep each other alive.
const LIST_LIFETIME: Duration = Duration::from_mins(1);

/// The peers that are known. A failed look-up changes nothing: what was known stays.
#[derive(Debug, Clone, Default)]
pub struct PeerSet {
    resolved: BTreeSet<SocketAddr>,
    lists: BTreeMap<SocketAddr, PeerList>,
}

#[derive(Debug, Clone)]
struct PeerList {
    peers: BTreeSet<SocketAddr>,
    until: Moment,
}

impl PeerSet {
    /// DNS named exactly these. Returns those that the answer before did not name.
    pub fn set_resolved(&mut self, peers: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
        let peers: BTreeSet<_> = peers.into_iter().take(MAX_PEERS).collect();
        let new = peers.difference(&self.resolved).copied().collect();
        self.resolved = peers;
        new
    }

    /// The peer `by` listed exactly these. Returns those that its list before did not have.
    pub fn set_listed(
        &mut self,
        by: SocketAddr,
        peers: impl IntoIterator<Item = SocketAddr>,
        now: Moment,
    ) -> Vec<SocketAddr> {
        if self.lists.len() >= MAX_PEERS && !self.lists.contains_key(&by) {
            return Vec::new();
        }
        let list =
            PeerList { peers: peers.into_iter().take(MAX_PEERS).collect(), until: now + LIST_LIFETIME };
        let before = self.lists.get(&by).map(|list| &list.peers);
        let is_new = |peer: &&SocketAddr| before.is_none_or(|before| !before.contains(peer));
        let new = list.peers.iter().filter(is_new).copied().collect();
        self.lists.insert(by, list);
        new
    }

    /// The peers at `now`; those that DNS names come before the others if there are too many.
    pub fn members(&mut self, now: Moment) -> BTreeSet<SocketAddr> {
        self.lists.retain(|_, list| list.until > now);
        let mut members = self.resolved.clone();
        for peer in self.lists.values().flat_map(|list| &list.peers) {
            if members.len() >= MAX_PEERS {
                break;
            }
            members.insert(*peer);
        }
        members
    }

    /// When the members may change without news.
    pub fn next_expiry(&self) -> Option<Moment> {
        self.lists.values().map(|list| list.until).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(n: usize) -> SocketAddr {
        SocketAddr::from((u32::try_from(0x0a00_0000 + n).unwrap().to_be_bytes(), 9443))
    }

    fn peers(all: &[usize]) -> BTreeSet<SocketAddr> {
        all.iter().map(|n| peer(*n)).collect()
    }

    #[test]
    fn peers_that_are_gone_do_not_keep_each_other_alive() {
        let mut set = PeerSet::default();
        set.set_resolved([peer(1)]);
        set.set_listed(peer(1), [peer(1), peer(2)], Moment::ZERO);
        set.set_listed(peer(2), [peer(1), peer(2)], Moment::ZERO);
        set.set_resolved([peer(3)]);
        assert_eq!(set.members(Moment::from_secs(59)), peers(&[1, 2, 3]));
        assert_eq!(set.members(Moment::from_secs(60)), peers(&[3]));
        assert_eq!(set.next_expiry(), None);
    }

    #[test]
    fn a_peer_that_comes_back_is_reported_as_new() {
        let mut set = PeerSet::default();
        assert_eq!(set.set_resolved([peer(1), peer(2)]), [peer(1), peer(2)]);
        assert_eq!(set.set_resolved([peer(1)]), []);
        assert_eq!(set.set_resolved([peer(1), peer(2)]), [peer(2)]);
        assert_eq!(set.set_listed(peer(1), [peer(2)], Moment::ZERO), [peer(2)]);
        assert_eq!(set.set_listed(peer(1), [peer(2), peer(3)], Moment::ZERO), [peer(3)]);
    }

    #[test]
    fn there_is_a_bound_and_dns_comes_first() {
        let mut set = PeerSet::default();
        for by in 0..MAX_PEERS * 2 {
            set.set_listed(peer(by), [peer(10_000 + by)], Moment::ZERO);
        }
        assert_eq!(set.members(Moment::ZERO).len(), MAX_PEERS);
        set.set_resolved((20_000..30_000).map(peer));
        let members = set.members(Moment::ZERO);
        assert_eq!(members.len(), MAX_PEERS);
        assert!(members.iter().all(|member| *member >= peer(20_000)), "{members:?}");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Resolved(Vec<usize>),
        Listed(usize, Vec<usize>),
        Later(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let some = || prop::collection::vec(0..6_usize, 0..4);
        prop_oneof![
            some().prop_map(Step::Resolved),
            (0..6_usize, some()).prop_map(|(by, all)| Step::Listed(by, all)),
            (0..40_u64).prop_map(Step::Later),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// The model keeps everything that was ever said, and looks for the newest word of each.
        #[test]
        fn the_members_are_those_of_the_newest_words(steps in prop::collection::vec(step(), 0..20)) {
            let (mut set, mut said, mut now) = (PeerSet::default(), Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Resolved(all) => {
                        set.set_resolved(peers(&all));
                        said.push((None, now, all));
                    }
                    Step::Listed(by, all) => {
                        set.set_listed(peer(by), peers(&all), Moment::from_secs(now));
                        said.push((Some(by), now, all));
                    }
                    Step::Later(seconds) => now += seconds,
                }
                let newest = |who: Option<usize>| said.iter().rev().find(|(by, ..)| *by == who);
                let words = [None].into_iter().chain((0..6).map(Some)).filter_map(newest);
                let valid = words.filter(|(by, at, _)| by.is_none() || now < at + 60);
                let expected: BTreeSet<_> = valid.flat_map(|(.., all)| peers(all)).collect();
                prop_assert_eq!(set.members(Moment::from_secs(now)), expected);
            }
        }
    }
}
