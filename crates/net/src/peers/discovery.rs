//! Looks the name of peers up, and keeps the addresses current.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::time::Moment;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{LookupSchedule, PeerHost, PeerUrl, Resolver};

/// How long a look-up may take. The resolver of the system gives up by itself after about as long.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The look-ups of one URL. The caller asks when the next one is due, starts it, and waits for its result.
pub struct Discovery {
    /// `None` if the URL has an address.
    name: Option<(Arc<str>, u16)>,
    /// The address of the URL, if it has one.
    address: Option<SocketAddr>,
    resolver: Arc<dyn Resolver>,
    schedule: LookupSchedule,
    /// At most one task.
    lookup: JoinSet<io::Result<Vec<SocketAddr>>>,
}

/// Why a look-up gave no address. What was known stays.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The name exists, and has no address.
    #[error("the name has no address")]
    NoAddress,
    /// The look-up failed.
    #[error("{0}")]
    Failed(io::Error),
}

impl Discovery {
    /// No look-up has started.
    pub fn new(url: &PeerUrl, resolver: Arc<dyn Resolver>) -> Self {
        let address = match url.host() {
            PeerHost::Address(ip) => Some(SocketAddr::new(*ip, url.port())),
            PeerHost::Name(_) => None,
        };
        let name = url.lookup_name().map(|name| (name.into(), url.port()));
        Self { name, address, resolver, schedule: LookupSchedule::default(), lookup: JoinSet::new() }
    }

    /// The address of the URL, if it has one: nothing is looked up.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The name that is looked up, or an empty text.
    pub fn name(&self) -> &str {
        self.name.as_ref().map_or("", |(name, _)| name)
    }

    /// When the next look-up is due; `None` while one is under way, and if there is nothing to look up. Urgent while something
    /// is wrong: a peer fails, or none is known.
    pub fn due(&self, urgent: bool) -> Option<Moment> {
        (self.name.is_some() && self.lookup.is_empty()).then(|| self.schedule.due(urgent))
    }

    /// Starts a look-up, if one is due.
    pub fn start_if_due(&mut self, urgent: bool, now: Moment, random: u64) {
        let is_due = self.due(urgent).is_some_and(|due| due <= now);
        let Some((name, port)) = self.name.clone().filter(|_| is_due) else { return };
        self.schedule.started(now, random);
        let resolver = Arc::clone(&self.resolver);
        self.lookup.spawn(async move {
            let found = timeout(LOOKUP_TIMEOUT, resolver.lookup(&name, port)).await;
            found.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
        });
    }

    /// Waits for the end of the look-up that is under way. Does not end if there is none. Can be cancelled without a loss.
    pub async fn finished(&mut self) -> Result<Vec<SocketAddr>, LookupError> {
        let Some(ended) = self.lookup.join_next().await else { return std::future::pending().await };
        match ended.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(found) if found.is_empty() => Err(LookupError::NoAddress),
            Ok(found) => Ok(found),
            Err(error) => Err(LookupError::Failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ResolverFuture;
    use super::*;

    /// Knows one name.
    struct OneName;

    impl Resolver for OneName {
        fn lookup<'a>(&'a self, name: &'a str, port: u16) -> ResolverFuture<'a> {
            Box::pin(async move {
                match name {
                    "peers.test." => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
                    "empty.test." => Ok(Vec::new()),
                    "slow.test." => std::future::pending().await,
                    _ => Err(io::Error::other("no such name")),
                }
            })
        }
    }

    async fn looked_up(url: &str) -> (Discovery, Result<Vec<SocketAddr>, String>) {
        let mut discovery = Discovery::new(&url.parse().unwrap(), Arc::new(OneName));
        discovery.start_if_due(false, Moment::ZERO, 0);
        assert_eq!(discovery.due(true), None, "one at a time");
        let found = discovery.finished().await.map_err(|error| error.to_string());
        (discovery, found)
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_at_once_and_again_later() {
        let (mut discovery, found) = looked_up("https://peers.test:9443").await;
        assert_eq!(found.unwrap(), [SocketAddr::from(([10, 0, 0, 1], 9443))]);
        let next = discovery.due(false).unwrap();
        assert!(next >= Moment::from_secs(11) && discovery.due(true) < Some(next));
        discovery.start_if_due(false, Moment::from_secs(5), 0);
        assert!(discovery.due(false).is_some(), "none has started");
        let none = timeout(Duration::from_secs(1), discovery.finished()).await;
        assert!(none.is_err(), "there is none to wait for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_gives_nothing_says_why() {
        for (url, expected) in [
            ("https://empty.test:1", "the name has no address"),
            ("https://other.test:1", "no such name"),
            ("https://slow.test:1", "timed out"),
        ] {
            assert_eq!(looked_up(url).await.1.unwrap_err(), expected);
        }
    }

    #[test]
    fn an_address_is_not_looked_up() {
        let discovery = Discovery::new(&"http://127.0.0.1:80".parse().unwrap(), Arc::new(OneName));
        assert_eq!(discovery.address(), Some(SocketAddr::from(([127, 0, 0, 1], 80))));
        assert_eq!((discovery.due(true), discovery.name()), (None, ""));
    }
}
