//! Steady load over persistent connections, half of it POSTs, and a tally of the outcomes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use rouse_e2e::body;
use rouse_e2e::client::session::{Http, whole};
use rouse_e2e::target::Target;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Persistent connections.
const CLIENTS: u32 = 20;
/// Requests a second, over all.
const RATE: u32 = 500;

/// How long each scenario lasts.
pub(crate) fn seconds() -> u64 {
    std::env::var("ROUSE_LOAD_SECONDS")
        .map_or(5, |text| text.parse().expect("ROUSE_LOAD_SECONDS is a number"))
}

/// The outcomes of the requests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) succeeded: u64,
    /// The failures, by description, and how often each occurred.
    pub(crate) failed: BTreeMap<String, u64>,
}

/// Load that runs until it is stopped.
pub(crate) struct Load {
    tasks: JoinSet<()>,
    tally: Arc<Mutex<Tally>>,
    over: Arc<AtomicBool>,
}

impl Load {
    /// Starts the load.
    pub(crate) fn on(target: &Target) -> Self {
        let (tally, over) = (Arc::<Mutex<Tally>>::default(), Arc::<AtomicBool>::default());
        let mut tasks = JoinSet::new();
        for number in 0..CLIENTS {
            let (target, tally, over) = (target.clone(), Arc::clone(&tally), Arc::clone(&over));
            tasks.spawn(async move { client(&target, number, &tally, &over).await });
        }
        Self { tasks, tally, over }
    }

    /// How many requests have succeeded so far.
    pub(crate) fn succeeded(&self) -> u64 {
        self.tally.lock().unwrap().succeeded
    }

    /// Sends no further request, and waits for those in flight.
    pub(crate) async fn stop(mut self) -> Tally {
        self.over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a client does not panic");
        }
        std::mem::take(&mut *self.tally.lock().unwrap())
    }
}

impl Tally {
    /// Asserts that there were requests and all succeeded.
    pub(crate) fn assert_perfect(&self) {
        assert!(self.failed.is_empty(), "{} succeeded, but: {:#?}", self.succeeded, self.failed);
        assert!(self.succeeded > 0, "there was no load");
    }
}

/// One client: one request at a time, at a fixed rate. It reconnects after a failure, after `Connection: close`, and after
/// the gateway closed the idle connection.
async fn client(target: &Target, number: u32, tally: &Mutex<Tally>, over: &AtomicBool) {
    let mut ticks = interval(Duration::from_secs(1) * CLIENTS / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut connection = None;
    let mut count = number;
    while !over.load(Ordering::SeqCst) {
        ticks.tick().await;
        count += 1;
        let method = if count.is_multiple_of(2) { Method::GET } else { Method::POST };
        let mut http = match connection.take() {
            Some(http) => http,
            None => Http::one(target).await,
        };
        let path = if method == Method::GET { "/" } else { "/sink" };
        let body = if method == Method::GET { body::empty() } else { body::full("some bytes") };
        let request = http.request(method.clone(), path).body(body).unwrap();
        let outcome = match http.try_send(request).await {
            Ok(response) => whole(response).await,
            // Closed while it was idle, before anything was sent: no request was made.
            Err(error) if error.is_canceled() || error.is_closed() => continue,
            Err(error) => Err(error),
        };
        let mut tally = tally.lock().unwrap();
        match outcome {
            Ok(answer) if answer.status == 200 => {
                tally.succeeded += 1;
                if answer.header("connection") != "close" {
                    connection = Some(http);
                }
            }
            Ok(answer) => {
                let why = format!("{method} {} {}", answer.status.as_u16(), answer.header("x-rouse-error"));
                *tally.failed.entry(why).or_default() += 1;
            }
            Err(error) => *tally.failed.entry(format!("{method} {error:?}")).or_default() += 1,
        }
    }
}
