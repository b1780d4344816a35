//! A network that delays, repeats, reorders and loses registrations: every gateway still ends with the truth (paused time).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rouse_core::endpoint::State;
use rouse_core::merge::PushEvent;
use rouse_core::random::Random;
use rouse_net::tls::Roots;
use rouse_register::client::{PushClientSettings, PushCredential};
use rouse_register::server::Reply;
use rouse_testkit::certificates::Authority;
use tokio::sync::oneshot;

use crate::credentials::{server_tls, token_file};
use crate::harness::{Gateway, Link, Network, Sidecar, default_url, now, pass, plain, seconds};

impl Network {
    fn dice(&self, sides: usize) -> usize {
        self.random.lock().unwrap().below(sides)
    }

    /// Delivers a request after `delay`, also if the client no longer waits for it.
    fn deliver_later(
        self: &Arc<Self>,
        to: &Arc<Gateway>,
        delay: Duration,
        authorization: Option<&[u8]>,
        body: &Bytes,
    ) -> oneshot::Receiver<Reply> {
        let (network, to, body) = (Arc::clone(self), Arc::clone(to), body.clone());
        let authorization = authorization.map(<[u8]>::to_vec);
        let (done, reply) = oneshot::channel();
        self.tasks.lock().unwrap().spawn(async move {
            pass(delay).await;
            done.send(network.deliver(&to, None, authorization.as_deref(), &body).await).ok();
        });
        reply
    }

    /// Does one of the things that a bad network does.
    pub(crate) async fn mistreat(
        self: &Arc<Self>,
        gateway: &Arc<Gateway>,
        authorization: Option<&[u8]>,
        body: &Bytes,
    ) -> Reply {
        let what = self.dice(5);
        let late = Duration::from_millis(self.dice(5000) as u64);
        if what == 0 {
            return std::future::pending().await;
        }
        let delay = if what == 1 { late } else { Duration::ZERO };
        let reply = self.deliver_later(gateway, delay, authorization, body);
        if what == 2 {
            // Everyone gets a copy, some time.
            for other in self.all() {
                let later = Duration::from_millis(self.dice(10_000) as u64);
                drop(self.deliver_later(&other, later, authorization, body));
            }
        }
        if what == 3 {
            return std::future::pending().await;
        }
        reply.await.unwrap()
    }
}

fn set_back() -> SystemTime {
    now() - Duration::from_secs(25)
}

async fn check(network: Arc<Network>, settings: PushClientSettings, seed: u64) {
    for n in 1..=3 {
        network.start(n, rouse_net::auth::PushMode::On);
        network.link(n, Link::Hostile);
    }
    network.name(&[1, 2, 3]);
    *network.random.lock().unwrap() = Random::new(seed);
    let mut sidecar = Sidecar::with(&network, settings.clone(), now);
    let mut expected = State::Starting;
    for round in 0..60 {
        if round == 40 {
            // The sidecar restarts, with its clock set back. Requests of the old one are still on their way.
            sidecar = Sidecar::with(&network, settings.clone(), set_back);
        }
        let (event, state) = match network.dice(2) {
            0 => (PushEvent::Ready, State::Ready),
            _ => (PushEvent::NotReady, State::Starting),
        };
        sidecar.reporter.report(event);
        expected = state;
        let pause = network.dice(3000) as u64;
        pass(Duration::from_millis(pause)).await;
    }
    (1..=3).for_each(|n| network.link(n, Link::Up));
    // The last copies arrive, and then each gateway hears of the sidecar once more.
    pass(seconds(10 + 62)).await;
    for _ in 0..10 {
        let states: Vec<_> = network.all().iter().map(|gateway| gateway.state()).collect();
        assert_eq!(states, [Some(expected); 3], "seed {seed}");
        pass(seconds(15)).await;
    }
    sidecar.reporter.report(PushEvent::Draining);
    network.all_know(State::Draining).await;
}

#[tokio::test(start_paused = true)]
async fn signed_registrations_converge_to_the_truth_on_every_gateway() {
    for seed in 0..20 {
        check(Network::new(None), plain(), seed).await;
    }
}

/// Tokens have no nonces: every copy is checked and reaches the merge.
#[tokio::test(start_paused = true)]
async fn registrations_with_a_token_converge_to_the_truth_on_every_gateway() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..20 {
        let credential = PushCredential::Token(token_file(folder.path(), 0));
        let tls = default_url().tls(Roots::Pem(vec![authority.ca()]), None);
        let settings = PushClientSettings { gateways: default_url(), credential, tls, ..plain() };
        check(Network::new(Some(server_tls(&authority, None))), settings, seed).await;
    }
}
