//! Looks up a pod that the watch has not seen yet: one request for all claims of the pod, and a bound on all requests.
//!
//! A look-up is a list by name, which needs no permission beyond those of the watch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use rouse_core::endpoint::PodUid;
use rouse_core::time::{Clock, Moment};
use serde::Deserialize;
use tokio::sync::{OnceCell, Semaphore};

use crate::client::{ObjectKind, describe, has_code, within};
use crate::endpoints::pod_index::{PodFacts, PodUpdate};

/// The most look-ups under way at a time. Forged claims of pods that do not exist must not flood the API server.
const AT_ONCE: usize = 16;
/// The most look-ups of one namespace under way at a time.
const AT_ONCE_OF_NAMESPACE: usize = 4;
/// How long a look-up may take, with the wait for its turn.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a look-up that found no pod is remembered. A sidecar runs in its pod, so a pod that is looked up exists already.
const REMEMBERED: Duration = Duration::from_secs(1);
/// The most look-ups that are remembered.
const MOST: usize = 1024;
/// The most look-ups of one namespace that are remembered. Who has a shared key can invent pods in its namespaces, and must not
/// take the look-ups of others.
const MOST_OF_NAMESPACE: usize = 128;

/// The pod that a claim names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PodKey {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: PodUid,
}

/// A pod that was looked up. It counts until the watch says more.
#[derive(Debug, Clone)]
pub(super) struct FoundPod {
    pub(super) pod: Arc<PodFacts>,
    /// How many lists of pods had begun when it was looked up.
    round: u64,
}

/// The result of a look-up.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    Found(FoundPod),
    /// The pod has ended.
    Ended,
    /// The pod of this name has another UID.
    OtherUid,
    /// There is no pod of this name.
    Missing,
    /// There was no answer, and why.
    Failed(Arc<str>),
}

/// One look-up, shared by all claims that wait for it.
#[derive(Debug)]
pub(super) struct Lookup {
    began: Moment,
    round: u64,
    /// Shared by the look-ups of the namespace.
    turns: Arc<Semaphore>,
    outcome: OnceCell<Outcome>,
    /// The watch has seen that the pod is gone.
    gone: AtomicBool,
}

/// Looks up pods.
pub(super) struct PodLookup {
    client: Client,
    clock: Arc<dyn Clock>,
    permits: Semaphore,
    /// Look-ups under way, and those that found nothing a short time ago.
    known: Mutex<HashMap<PodKey, Arc<Lookup>>>,
    /// How many lists of pods have begun.
    lists_begun: AtomicU64,
    /// The number of the newest list of pods that is complete.
    list_done: AtomicU64,
}

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    items: Option<Vec<PodUpdate>>,
}

impl Lookup {
    /// The outcome, once the look-up is done.
    pub(super) fn outcome(&self) -> Outcome {
        self.outcome.get().cloned().unwrap_or(Outcome::Missing)
    }

    /// Whether another claim may use this look-up. `waits`: another claim still waits for it.
    fn is_current(&self, waits: bool, now: Moment) -> bool {
        match self.outcome.get() {
            None | Some(Outcome::Found(_)) => waits,
            Some(_) => now.since(self.began) < REMEMBERED,
        }
    }

    /// Whether the watch has seen that the pod is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

impl PodLookup {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        let (permits, known) = (Semaphore::new(AT_ONCE), Mutex::default());
        let (lists_begun, list_done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { client, clock, permits, known, lists_begun, list_done }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodKey, Arc<Lookup>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up a pod. Concurrent calls for one pod send one request; if the call that sends it is cancelled, another
    /// call sends it again. `None`: too many look-ups are under way, in all or in its namespace.
    pub(super) async fn find(&self, key: &PodKey) -> Option<Arc<Lookup>> {
        let lookup = self.shared(key)?;
        lookup.outcome.get_or_init(|| self.ask(key, &lookup)).await;
        Some(lookup)
    }

    /// The look-up of this pod that is under way, or a new one.
    fn shared(&self, key: &PodKey) -> Option<Arc<Lookup>> {
        let now = self.clock.now();
        let is_current = |lookup: &Arc<Lookup>| lookup.is_current(Arc::strong_count(lookup) > 1, now);
        let mut known = self.lock();
        if let Some(lookup) = known.get(key).filter(|lookup| is_current(lookup)) {
            return Some(Arc::clone(lookup));
        }
        let is_full = |known: &HashMap<PodKey, Arc<Lookup>>| {
            let of_namespace = known.keys().filter(|other| other.namespace == key.namespace);
            known.len() >= MOST || of_namespace.count() >= MOST_OF_NAMESPACE
        };
        if is_full(&known) {
            known.retain(|_, lookup| is_current(lookup));
            if is_full(&known) {
                return None;
            }
        }
        let neighbour = known.iter().find(|(other, _)| other.namespace == key.namespace);
        let lookup = Arc::new(Lookup {
            began: now,
            round: self.lists_begun.load(Ordering::SeqCst),
            turns: neighbour.map_or_else(
                || Arc::new(Semaphore::new(AT_ONCE_OF_NAMESPACE)),
                |(_, lookup)| Arc::clone(&lookup.turns),
            ),
            outcome: OnceCell::new(),
            gone: AtomicBool::new(false),
        });
        known.insert(key.clone(), Arc::clone(&lookup));
        Some(lookup)
    }

    async fn ask(&self, key: &PodKey, lookup: &Lookup) -> Outcome {
        let asked = async {
            // The semaphores are never closed. That of the namespace comes first: who waits for it takes no turn of others.
            let _turn = lookup.turns.acquire().await.ok();
            let _permit = self.permits.acquire().await.ok();
            let params = ListParams {
                field_selector: Some(format!("metadata.name={}", key.name)),
                ..ListParams::default()
            };
            let request = Request::new(ObjectKind::POD.path(Some(&key.namespace))).list(&params);
            self.client.request::<PodList>(request.map_err(kube::Error::BuildRequest)?).await
        };
        let pods = match within(ANSWER, asked).await {
            Ok(list) => list.items.unwrap_or_default(),
            Err(error) if has_code(&error, 403) => {
                let words = format!("the permission to list pods is missing: {}", describe(&error));
                return Outcome::Failed(words.into());
            }
            Err(error) => return Outcome::Failed(describe(&error).into()),
        };
        match pods.into_iter().next() {
            None => Outcome::Missing,
            Some(pod) if pod.any_uid() != Some(&key.uid) => Outcome::OtherUid,
            Some(pod) => match pod.into_facts() {
                Some(facts) => Outcome::Found(FoundPod { pod: Arc::new(facts), round: lookup.round }),
                None => Outcome::Ended,
            },
        }
    }

    /// The watch has seen that a pod is gone. Call it before the grants of the pod are removed.
    pub(super) fn pod_gone(&self, uid: &PodUid) {
        for (_, lookup) in self.lock().iter().filter(|(key, _)| key.uid == *uid) {
            lookup.gone.store(true, Ordering::SeqCst);
        }
    }

    /// A list of all pods begins.
    pub(super) fn pods_listing(&self) {
        self.lists_begun.fetch_add(1, Ordering::SeqCst);
    }

    /// The list of all pods that began last is complete.
    pub(super) fn pods_listed(&self) {
        self.list_done.store(self.lists_begun.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Whether a pod that is not in the index may exist: no complete list of pods is newer than its look-up.
    pub(super) fn may_exist(&self, found: &FoundPod) -> bool {
        found.round >= self.list_done.load(Ordering::SeqCst)
    }
}
