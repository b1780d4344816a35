//! Open-loop load: requests at a fixed rate, whether or not earlier ones are answered, and a tally of their outcomes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::body;
use crate::client::session::{Http, whole};
use crate::target::Target;
use crate::wait::{LONG_PATIENCE, patiently};

/// A connection that was idle for longer is not reused: the gateway may be about to close it.
const FRESH: Duration = Duration::from_secs(10);

/// The outcomes of the requests.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Those that were answered 200.
    pub succeeded: u64,
    /// The failures, by description, and how often each occurred.
    pub failed: BTreeMap<String, u64>,
    /// How long the slowest took.
    pub slowest: Duration,
}

impl Tally {
    /// Asserts that there were requests and all succeeded.
    pub fn assert_perfect(&self) {
        assert!(self.failed.is_empty(), "{} succeeded, but: {:#?}", self.succeeded, self.failed);
        assert!(self.succeeded > 0, "there was no load");
    }
}

/// Load that runs until it is stopped. Half of the requests are POSTs. The client retries nothing.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    target: Target,
    idle: Mutex<Vec<(Instant, Http)>>,
    tally: Mutex<Tally>,
    over: AtomicBool,
}

impl Load {
    /// Starts the load, at `rate` requests per second.
    pub fn on(target: &Target, rate: u32) -> Self {
        // Each waiting request has its own connection, so there may be thousands within seconds.
        let limit = getrlimit(Resource::Nofile);
        let _unimportant = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let shared = Arc::new(Shared {
            target: target.clone(),
            idle: Mutex::default(),
            tally: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(drive(Arc::clone(&shared), rate));
        Self { shared, tasks }
    }

    /// The outcomes so far.
    pub fn tally(&self) -> Tally {
        lock(&self.shared.tally).clone()
    }

    /// Waits until `more` further requests have succeeded.
    pub async fn flows(&self, more: u64) {
        let goal = self.tally().succeeded + more;
        patiently("the load to flow", async || (self.tally().succeeded >= goal).then_some(())).await;
    }

    /// Sends no further request, and waits for those in flight.
    pub async fn stop(mut self) -> Tally {
        self.shared.over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap_or_else(|error| panic!("the load broke down: {error}"));
        }
        self.tally()
    }
}

async fn drive(shared: Arc<Shared>, rate: u32) {
    let mut ticks = interval(Duration::from_secs(1) / rate);
    // Open loop: ticks that were missed are made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = JoinSet::new();
    let mut count = 0_u64;
    while !shared.over.load(Ordering::SeqCst) {
        ticks.tick().await;
        count += 1;
        let method = if count.is_multiple_of(2) { Method::GET } else { Method::POST };
        requests.spawn(one(Arc::clone(&shared), method));
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
}

async fn one(shared: Arc<Shared>, method: Method) {
    let began = Instant::now();
    let outcome = timeout(LONG_PATIENCE, ask(&shared, &method)).await;
    let mut tally = lock(&shared.tally);
    tally.slowest = tally.slowest.max(began.elapsed());
    match outcome.unwrap_or_else(|_| Err("no answer".to_owned())) {
        Ok(()) => tally.succeeded += 1,
        Err(why) => *tally.failed.entry(format!("{method} {why}")).or_default() += 1,
    }
}

async fn ask(shared: &Shared, method: &Method) -> Result<(), String> {
    loop {
        let kept = lock(&shared.idle).pop().filter(|(since, _)| since.elapsed() < FRESH);
        let mut http = if let Some((_, http)) = kept {
            http
        } else {
            let stream = TcpStream::connect(shared.target.address).await;
            let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            Http::one_over(stream, &shared.target.host).await
        };
        let (path, body) = match *method {
            Method::GET => ("/", body::empty()),
            _ => ("/sink", body::full("some bytes")),
        };
        let request = http.request(method.clone(), path).body(body).map_err(|error| error.to_string())?;
        let answer = match http.start(request).await.await {
            Ok(response) => whole(response).await,
            // Closed while it was idle, before anything was sent: no request was made.
            Err(error) if error.is_canceled() || error.is_closed() => continue,
            Err(error) => Err(error),
        };
        let answer = answer.map_err(|error| format!("{error:?}"))?;
        if answer.status != 200 {
            return Err(format!("{} {}", answer.status.as_u16(), answer.header("x-rouse-error")));
        }
        if answer.header("connection") != "close" {
            lock(&shared.idle).push((Instant::now(), http));
        }
        return Ok(());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
