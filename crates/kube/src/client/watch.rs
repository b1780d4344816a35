//! Lists and watches all objects of one kind, and lists again whenever an event may have been missed.
//!
//! A list replaces the state only when it is complete, so a relist never empties it. `kube`'s own watcher is not used: it
//! hides bookmarks, retries an expired version for ever if the API server refuses it by status, and continues from a
//! version that the server has never seen after etcd was restored from a backup.

mod health;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use kube::Client;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Request;
use rouse_core::random::SharedRandom;
use rouse_core::start_failure::one_line;
use rouse_core::time::Clock;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::{ObjectKind, ObjectSelector, describe, has_code};
pub(crate) use health::WatchHealth;
pub use health::{WatchReport, WatchState};

/// How many objects a page of a list has.
const PAGE: u32 = 500;
/// How long one page of a list, or the start of a watch, may take.
const ANSWER: Duration = Duration::from_mins(1);
/// How long a watch lasts; half of it is jitter, so that gateways do not all come back at once.
const WATCH: Duration = Duration::from_mins(5);
/// A watch that ends sooner is restarted with backoff.
const SHORT: Duration = Duration::from_secs(5);
/// Bookmarks come about every minute. A watch that receives nothing for this time is given up.
const SILENCE: Duration = Duration::from_mins(3);
/// The longest gap between two watches after which the resource version is still trusted. Restoring etcd from a backup
/// takes longer than this. After a longer gap, the server may have gone back to an older version and passed ours again
/// with other events, so all objects are listed again.
const GAP: Duration = Duration::from_secs(15);
/// How often a watch checks whether this process was frozen.
const LOOK: Duration = Duration::from_secs(1);
/// The first and the longest pause before a kind that is not installed is listed again. Half of each pause is jitter.
const MISSING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The first and the longest pause after failures. Half of each pause is jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Receives the objects of a watch.
pub(crate) trait Sink: Send {
    /// The type that an object is parsed into.
    type Object: DeserializeOwned + Send;

    /// A list is complete: `all` replaces everything before it.
    fn replace(&mut self, all: Vec<Self::Object>);
    /// An object was added or has changed.
    fn put(&mut self, object: Self::Object);
    /// An object was deleted. Gets its last state.
    fn remove(&mut self, object: Self::Object);
    /// An object could not be parsed and is left out. Gets a text that says which and why.
    fn unreadable(&mut self, words: String);
    /// A list begins.
    fn listing(&mut self) {}
    /// A list failed. Gets the error text. The watch retries the list with backoff.
    fn failed(&mut self, _words: &str) {}
}

/// A watch of one kind: which objects, with which client, and where its health is reported.
pub(crate) struct Watch {
    pub(crate) client: Client,
    pub(crate) kind: ObjectKind,
    /// `None`: the whole cluster.
    pub(crate) namespace: Option<Arc<str>>,
    /// Only these objects; `None`: all.
    pub(crate) selector: Option<ObjectSelector>,
    pub(crate) health: Arc<WatchHealth>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<SharedRandom>,
    /// Notified when all objects must be listed again.
    pub(crate) again: Arc<Notify>,
}

/// A page of a list. Items are parsed one by one, so that one bad item does not fail the whole list.
#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    #[serde(default)]
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// The metadata of an object: its resource version, to continue from, and its name, for error texts.
#[derive(Deserialize)]
struct Versioned {
    metadata: VersionedMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionedMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// Why a watch ended.
enum End {
    /// The server ended it; everything up to this version was seen.
    Done(String),
    /// Events may have been missed, without an error: the version is too old, or a relist was requested.
    Expired,
    /// An error, after which events may have been missed. Has its text.
    Broken(String),
}

impl Watch {
    /// Lists and watches until `cancel`.
    pub(crate) async fn run<S: Sink>(self, mut sink: S, cancel: CancellationToken) {
        let never = self.follow(&mut sink);
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = never => {}
        }
    }

    async fn follow<S: Sink>(&self, sink: &mut S) {
        let (mut failures, mut absences): (u32, u32) = (0, 0);
        loop {
            match self.list(sink).await {
                Ok((all, version)) => {
                    absences = 0;
                    sink.replace(all);
                    self.health.listed(self.clock.now());
                    match self.watch_from(version, sink).await {
                        End::Broken(why) => {
                            // The watch has received something, so the server works: the backoff starts again.
                            failures = if self.health.lived() { 1 } else { failures + 1 };
                            self.health.broken(self.clock.now(), why);
                        }
                        End::Done(_) | End::Expired => {
                            failures = u32::from(!self.health.lived()) * (failures + 1);
                        }
                    }
                }
                Err(error) if self.kind.optional && has_code(&error, 404) => {
                    self.health.missing(self.clock.now());
                    absences += 1;
                    self.pause(MISSING, absences).await;
                    continue;
                }
                // The continue token of the pages has expired: list from the start.
                Err(error) if has_code(&error, 410) && failures == 0 => failures = 1,
                Err(error) => {
                    failures += 1;
                    let words = self.describe(&error);
                    sink.failed(&words);
                    self.health.broken(self.clock.now(), words);
                }
            }
            self.pause(PAUSES, failures).await;
        }
    }

    async fn pause(&self, (least, most): (Duration, Duration), failures: u32) {
        let Some(doublings) = failures.checked_sub(1) else { return };
        let pause = least.saturating_mul(1 << doublings.min(10)).min(most);
        sleep_until(Instant::now() + self.random.between(pause / 2, pause)).await;
    }

    /// The text of an error. For 403 it names the permission to grant: the server's own message depends on its authorizer.
    fn describe(&self, error: &kube::Error) -> String {
        if !has_code(error, 403) {
            return describe(error);
        }
        let place = match &self.namespace {
            Some(namespace) => format!("in namespace {namespace}"),
            None => "in all namespaces".to_owned(),
        };
        let (resource, said) = (self.kind.resource(), describe(error));
        format!("the permission to list and watch {resource} {place} is missing: {said}")
    }

    fn request(&self) -> Request {
        Request::new(self.kind.path(self.namespace.as_deref()))
    }

    fn fields(&self) -> Option<String> {
        match &self.selector {
            Some(ObjectSelector::Name(name)) => Some(format!("metadata.name={name}")),
            Some(ObjectSelector::Label(..)) | None => None,
        }
    }

    fn labels(&self) -> Option<String> {
        match &self.selector {
            Some(ObjectSelector::Label(label, value)) => Some(format!("{label}={value}")),
            Some(ObjectSelector::Name(_)) | None => None,
        }
    }

    async fn page(&self, limit: u32, next: Option<String>) -> Result<Page, kube::Error> {
        let params = ListParams {
            field_selector: self.fields(),
            label_selector: self.labels(),
            limit: Some(limit),
            continue_token: next,
            ..ListParams::default()
        };
        let request = self.request().list(&params).map_err(kube::Error::BuildRequest)?;
        crate::client::within(ANSWER, self.client.request(request)).await
    }

    /// Lists all objects at the newest version: a cached, older list could go back in time.
    async fn list<S: Sink>(&self, sink: &mut S) -> Result<(Vec<S::Object>, String), kube::Error> {
        sink.listing();
        let (mut all, mut next) = (Vec::new(), None);
        loop {
            let page = self.page(PAGE, next).await?;
            for raw in page.items.unwrap_or_default() {
                all.extend(self.read(&raw, sink));
            }
            self.health.heard(self.clock.now());
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok((all, page.metadata.resource_version));
            }
        }
    }

    fn read<S: Sink>(&self, raw: &RawValue, sink: &mut S) -> Option<S::Object> {
        match serde_json::from_str(raw.get()) {
            Ok(object) => Some(object),
            Err(error) => {
                let who = serde_json::from_str(raw.get()).ok().map(|Versioned { metadata }| metadata);
                let who = who.map(|meta| format!("{}/{}", meta.namespace, meta.name)).unwrap_or_default();
                let name = self.kind.name;
                sink.unreadable(one_line(&format!("{name} {who} cannot be read and is left out: {error}")));
                None
            }
        }
    }

    /// Watches from `version`, and starts the next watch where the last one ended, as long as no event can have been missed.
    async fn watch_from<S: Sink>(&self, mut version: String, sink: &mut S) -> End {
        let (mut short_lived, mut ended) = (0, None);
        loop {
            let began = Instant::now();
            let end = tokio::select! {
                end = self.watch_once(version, ended, sink) => end,
                () = self.again.notified() => End::Expired,
            };
            ended = Some(Instant::now());
            match end {
                End::Done(seen) => match self.still_ahead(&seen).await {
                    Ok(true) => {
                        version = seen;
                        // A proxy in between may end every watch at once: pause longer each time.
                        short_lived = if began.elapsed() < SHORT { short_lived + 1 } else { 0 };
                        self.pause(PAUSES, short_lived).await;
                    }
                    Ok(false) => return End::Expired,
                    Err(error) => return End::Broken(self.describe(&error)),
                },
                lost => return lost,
            }
        }
    }

    /// Whether the server's version is at least `seen`. It is not after etcd was restored from a backup: a watch from a
    /// version that the server has not reached yet would miss all events up to it.
    async fn still_ahead(&self, seen: &str) -> Result<bool, kube::Error> {
        let now = self.page(1, None).await?.metadata.resource_version;
        let ahead = now.parse::<u64>().ok().zip(seen.parse::<u64>().ok());
        Ok(ahead.is_some_and(|(now, seen)| now >= seen))
    }

    /// Runs one watch. `ended`: when the previous watch since the last list ended, if there was one.
    async fn watch_once<S: Sink>(&self, mut version: String, ended: Option<Instant>, sink: &mut S) -> End {
        let seconds = u32::try_from(self.random.between(WATCH / 2, WATCH).as_secs()).unwrap_or(u32::MAX);
        let params = WatchParams {
            field_selector: self.fields(),
            label_selector: self.labels(),
            timeout: Some(seconds),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = match self.request().watch(&params, &version) {
            Ok(request) => request,
            Err(error) => return End::Broken(error.to_string()),
        };
        let events = self.client.request_events::<Box<RawValue>>(request);
        let events = match crate::client::within(ANSWER, events).await {
            Ok(events) => events,
            Err(error) if has_code(&error, 410) => return End::Expired,
            Err(error) => return End::Broken(self.describe(&error)),
        };
        if ended.is_some_and(|ended| ended.elapsed() > GAP) {
            return End::Expired;
        }
        self.health.following(self.clock.now());
        let mut events = pin!(events);
        let (mut heard, mut awake, mut frozen) = (Instant::now(), Instant::now(), false);
        loop {
            let event = timeout(LOOK, events.try_next()).await;
            // After the process was frozen, buffered events are old, until a wait for the next event times out. If the
            // watch ends before that, all objects are listed again.
            frozen = awake.elapsed() > LOOK + GAP || (frozen && event.is_ok());
            awake = Instant::now();
            let event = match event {
                // The connection died at an unknown time.
                Err(_) if heard.elapsed() > SILENCE => return End::Expired,
                Err(_) => continue,
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) if frozen => return End::Expired,
                Ok(Ok(None)) => return End::Done(version),
                Ok(Err(error)) => return End::Broken(self.describe(&error)),
            };
            heard = awake;
            let (raw, gone) = match event {
                WatchEvent::Bookmark(mark) => {
                    self.health.heard(self.clock.now());
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return End::Expired,
                WatchEvent::Error(status) => return End::Broken(one_line(&status.message)),
                WatchEvent::Added(raw) | WatchEvent::Modified(raw) => (raw, false),
                WatchEvent::Deleted(raw) => (raw, true),
            };
            let seen = serde_json::from_str(raw.get()).ok().map(|Versioned { metadata }| metadata);
            let Some(seen) = seen.map(|meta| meta.resource_version).filter(|version| !version.is_empty())
            else {
                return End::Broken("the API server sent an event without a resourceVersion".to_owned());
            };
            self.health.heard(self.clock.now());
            match self.read(&raw, sink) {
                Some(object) if gone => sink.remove(object),
                Some(object) => sink.put(object),
                None => {}
            }
            version = seen;
        }
    }
}
