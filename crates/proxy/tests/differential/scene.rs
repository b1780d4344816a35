//! Runs the cases through a gateway with sixteen clients and one pod, and shrinks the first failing case.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rouse_testkit::fakes::READY;
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::case::Case;
use crate::client::Connection;
use crate::judge::{Outcome, judge};
use crate::pod::{self, Received};
use crate::reader::{self, End, View};
use crate::rig::{Options, PATIENCE, Rig};
use crate::tally::Tally;

const CLIENTS: usize = 16;
/// The most cases on one connection.
const CARRIED: u64 = 64;
/// The wait for a response that did not come within PATIENCE before.
const SHORT: Duration = Duration::from_secs(3);

/// A gateway, its pod, and what they have recorded.
pub(crate) struct Scene {
    _rig: Rig,
    seed: u64,
    shared: Arc<Shared>,
}

struct Shared {
    gateway: SocketAddr,
    received: Arc<Mutex<Received>>,
    connections: AtomicU32,
    next: AtomicU64,
    /// The number of the case at which to stop. A skipped case is replaced by another.
    end: AtomicU64,
    stop: AtomicBool,
    tally: Mutex<Tally>,
}

/// The first case that went wrong.
pub(crate) struct Failure {
    case: Option<u64>,
    /// How many cases preceded it on its connection.
    before: u64,
    why: String,
}

impl Scene {
    pub(crate) fn new(seed: u64) -> Self {
        // No client's X-Forwarded-For is trusted: the pod sees the client's own address.
        let rig = Rig::new(Options { edge: true, ..Options::default() });
        let received = Arc::<Mutex<Received>>::default();
        rig.slices(&[(1, pod::start(&received), READY)]);
        let shared = Shared {
            gateway: rig.address,
            received,
            connections: AtomicU32::new(0),
            next: AtomicU64::new(0),
            end: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            tally: Mutex::default(),
        };
        Self { _rig: rig, seed, shared: Arc::new(shared) }
    }

    /// Plays `cases` cases.
    pub(crate) async fn run(&self, first: u64, cases: u64) -> Result<Tally, Failure> {
        self.shared.next.store(first, Ordering::Relaxed);
        self.shared.end.store(first + cases, Ordering::Relaxed);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(Arc::clone(&self.shared).client(self.seed));
        }
        let mut failure = None;
        while let Some(ended) = clients.join_next().await {
            failure = failure.or(ended.unwrap().err());
        }
        failure = failure.or(self.shared.late().await);
        let mut tally = std::mem::take(&mut *self.shared.tally.lock().unwrap());
        tally.connections = u64::from(self.shared.connections.load(Ordering::Relaxed));
        failure.map_or(Ok(tally), Err)
    }

    /// Describes the failure, with the smallest case that still shows it.
    pub(crate) async fn explain(&self, failure: Failure) -> String {
        let Failure { case, before, why } = failure;
        let Some(number) = case else { return format!("seed {}, in an unknown case: {why}", self.seed) };
        let mut text = format!(
            "seed {}, case {number}, after {before} others on its connection: {why}\n\
             ROUSE_DIFFERENTIAL_SEED={} ROUSE_DIFFERENTIAL_FIRST={number} ROUSE_DIFFERENTIAL_CASES=1 repeats it\n",
            self.seed, self.seed
        );
        let mut case = Case::new(self.seed, number);
        let Some(mut shown) = self.shared.alone(&case).await else {
            write!(text, "alone, it is fine. It sent:\n\"{}\"", shown(&case.bytes())).unwrap();
            return text;
        };
        'smaller: loop {
            for less in case.smaller() {
                if let Some(still) = self.shared.alone(&less).await {
                    (case, shown) = (less, still);
                    continue 'smaller;
                }
            }
            text.push_str(&shown);
            return text;
        }
    }
}

impl Shared {
    async fn client(self: Arc<Self>, seed: u64) -> Result<(), Failure> {
        let mut connection = None;
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.end.load(Ordering::Relaxed) {
                break;
            }
            let played = self.play(&mut connection, &Case::new(seed, number), PATIENCE).await;
            let failed = played.err().map(|(before, why)| Failure { case: Some(number), before, why });
            let fault = self.received.lock().unwrap().fault();
            let fault = fault.map(|(case, why)| Failure { case, before: 0, why });
            if let Some(failure) = fault.or(failed) {
                self.stop.store(true, Ordering::Relaxed);
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Runs one case, on the previous connection if it is still open.
    async fn play(
        &self,
        connection: &mut Option<Connection>,
        case: &Case,
        patience: Duration,
    ) -> Result<(), (u64, String)> {
        let bytes = case.bytes();
        let view = reader::read(&bytes);
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::new(self.gateway, self.connections.fetch_add(1, Ordering::Relaxed)).await,
        };
        let before = open.carried;
        open.carried += 1;
        self.received.lock().unwrap().begin(open.address, case.number);
        let mut outcome = open.play(&case.pieces(&bytes), &view, patience).await;
        let stays =
            matches!(view.end, End::Clean) && !outcome.ended && !outcome.silent && open.carried < CARRIED;
        if stays && !view.asked.iter().any(|asked| asked.has_body && asked.fate != reader::Fate::Forwarded) {
            outcome.got = self.received.lock().unwrap().take(open.address);
            *connection = Some(open);
        } else {
            self.end(open, case.number, &view, &mut outcome, patience).await;
        }
        let verdict =
            judge(&view, &outcome).map_err(|why| (before, report(&why, &bytes, &view, &outcome)))?;
        self.tally.lock().unwrap().add(&view, &verdict);
        Ok(())
    }

    /// Ends a connection, unless it has ended, and reads the last bytes.
    async fn end(
        &self,
        mut open: Connection,
        case: u64,
        view: &View,
        outcome: &mut Outcome,
        patience: Duration,
    ) {
        if matches!(view.end, End::Clean) && !outcome.ended && !outcome.silent {
            let last = open.finish(view, patience).await;
            outcome.answers.extend(last.answers);
            outcome.stray.extend(last.stray);
            outcome.silent = last.silent;
        }
        let part = match &view.end {
            End::BadBody(_, part) | End::InBody(part) if part.fate == reader::Fate::Forwarded => {
                Some(part.clone())
            }
            _ => None,
        };
        outcome.got = self.received.lock().unwrap().close(open.address, case, part);
    }

    /// Runs a case on a new connection. Returns its fault.
    async fn alone(&self, case: &Case) -> Option<String> {
        while self.received.lock().unwrap().fault().is_some() {}
        let played = self.play(&mut None, case, SHORT).await;
        let late = self.late().await.map(|failure| {
            let bytes = case.bytes();
            report(&failure.why, &bytes, &reader::read(&bytes), &Outcome::default())
        });
        played.err().map(|(_, why)| why).or(late)
    }

    /// A fault that the pod reports after all cases.
    async fn late(&self) -> Option<Failure> {
        let mut looks = interval(Duration::from_millis(20));
        for _ in 0..10 {
            looks.tick().await;
            if let Some((case, why)) = self.received.lock().unwrap().fault() {
                return Some(Failure { case, before: 0, why });
            }
        }
        None
    }
}

fn report(why: &str, bytes: &[u8], view: &View, outcome: &Outcome) -> String {
    let mut text = format!("{why}\nthe client sent:\n\"{}\"\na strict reader finds:\n", shown(bytes));
    for asked in &view.asked {
        let (method, target) = (asked.method.escape_ascii(), asked.target.escape_ascii());
        writeln!(text, "  {method} {target} {:?} \"{}\"", asked.fate, asked.body.escape_ascii()).unwrap();
    }
    let end = match &view.end {
        End::BadHead(rule) => format!("a bad head: {rule}"),
        End::BadBody(rule, part) => format!("a bad body: {rule}, of {}", part.target.escape_ascii()),
        End::InBody(part) => format!("a part of {}", part.target.escape_ascii()),
        other => format!("{other:?}"),
    };
    writeln!(text, "  and then: {end}\nthe pod got:").unwrap();
    for got in &outcome.got {
        let (method, target) = (got.method.escape_ascii(), got.target.escape_ascii());
        writeln!(text, "  {method} {target} whole: {} \"{}\"", got.whole, got.body.escape_ascii()).unwrap();
    }
    let Outcome { answers, stray, ended, silent, .. } = outcome;
    writeln!(
        text,
        "the client answers: {answers:?} and \"{}\", ended: {ended}, silent: {silent}",
        stray.escape_ascii()
    )
    .unwrap();
    text
}

/// Escapes bytes and shortens long ones, for messages.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(|one, next| one == next) {
        let few = run.len().min(20);
        write!(text, "{}", run[..few].escape_ascii()).unwrap();
        if few < run.len() {
            write!(text, "<{} of these>", run.len()).unwrap();
        }
    }
    text
}
