//! Gives senders that were accepted in the last 5 minutes a rate limit of their own, used when their source is over its limit:
//! pods may share one address, and a bad one must not silence its neighbours.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use rouse_core::budget::{Rate, TokenBucket};
use rouse_core::endpoint::PodUid;
use rouse_core::time::Moment;
use rouse_net::auth::CredentialId;

/// The most senders that are remembered.
const SENDERS: usize = 16_384;
/// How long a sender is remembered. Sidecars renew each 20 s.
const REMEMBERED: Duration = Duration::from_mins(5);

/// A sender as its request names it. Only a request that was accepted proves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SenderId {
    pub(super) credential: CredentialId,
    pub(super) peer: IpAddr,
    pub(super) pod: PodUid,
}

/// The senders.
#[derive(Debug)]
pub(super) struct KnownSenders {
    rate: Rate,
    senders: HashMap<SenderId, KnownSender>,
}

#[derive(Debug)]
struct KnownSender {
    accepted: Moment,
    /// Requests that name this sender may be forged: they are limited too.
    requests: TokenBucket,
}

impl KnownSenders {
    /// `rate` is that of each sender, while its source is over its limits.
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, senders: HashMap::new() }
    }

    /// Takes a request that names `sender`. Returns false if it is not known, or sends too many.
    pub(super) fn admit(&mut self, sender: &SenderId, now: Moment) -> bool {
        let known = self.senders.get_mut(sender).filter(|known| now.since(known.accepted) < REMEMBERED);
        known.is_some_and(|known| known.requests.try_take(now))
    }

    /// A request of `sender` was accepted.
    pub(super) fn accepted(&mut self, sender: SenderId, now: Moment) {
        if let Some(known) = self.senders.get_mut(&sender) {
            known.accepted = now;
            return;
        }
        if self.senders.len() >= SENDERS {
            self.senders.retain(|_, known| now.since(known.accepted) < REMEMBERED);
        }
        if self.senders.len() < SENDERS {
            let known = KnownSender { accepted: now, requests: TokenBucket::new(self.rate, now) };
            self.senders.insert(sender, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(n: u32) -> SenderId {
        let credential = CredentialId::Key("one".into());
        SenderId { credential, peer: IpAddr::V4(n.into()), pod: PodUid::new("uid") }
    }

    fn admitted(senders: &mut KnownSenders, n: u32, now: Moment) -> usize {
        (0..100).filter(|_| senders.admit(&sender(n), now)).count()
    }

    #[test]
    fn a_sender_is_known_for_five_minutes_after_it_was_accepted_and_is_limited() {
        let mut senders = KnownSenders::new(Rate { per_second: 2, burst: 20 });
        assert_eq!(admitted(&mut senders, 1, Moment::ZERO), 0);
        senders.accepted(sender(1), Moment::ZERO);
        let counts = [(1, 0), (2, 0), (1, 1), (1, 299), (1, 300)]
            .map(|(n, second)| admitted(&mut senders, n, Moment::from_secs(second)));
        assert_eq!(counts, [20, 0, 2, 20, 0]);
        senders.accepted(sender(1), Moment::from_secs(301));
        assert_eq!(admitted(&mut senders, 1, Moment::from_secs(302)), 6, "no new bucket");
    }

    #[test]
    fn senders_are_bounded_and_old_ones_make_room() {
        let mut senders = KnownSenders::new(Rate { per_second: 2, burst: 20 });
        for n in 0..u32::try_from(SENDERS).unwrap() + 10 {
            senders.accepted(sender(n), Moment::ZERO);
        }
        assert_eq!(senders.senders.len(), SENDERS);
        senders.accepted(sender(u32::MAX), Moment::from_secs(400));
        assert_eq!(senders.senders.len(), 1);
    }
}
