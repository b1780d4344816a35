//! A scripted API server in memory: lists in pages, watches with history and bookmarks, creations, patches with versions, access
//! reviews. A test makes it fail: cut connections, expire versions, refuse, send no events, go back in time, hang.
//!
//! A test talks to it through [`ApiServer::client`], or over TCP after [`ApiServer::serve`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test that misuses it must fail"
)]

mod serve;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Response};
use http_body::Frame;
use http_body_util::{Either, Full};
use serde_json::{Value, json};
use tokio::sync::mpsc;

type Line = Result<Bytes, io::Error>;
type Answer = Response<Either<Full<Bytes>, Lines>>;
type Interruption = Box<dyn FnOnce(&ApiServer) + Send>;

/// The body of a watch.
pub struct Lines(mpsc::Receiver<Line>);

impl http_body::Body for Lines {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| line.map(Frame::data)))
    }
}

/// A request that the server has received.
#[derive(Debug, Clone)]
pub struct ApiRequest {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: String,
    /// Its query, as it was written.
    pub query: String,
    /// Its body; null if that is not JSON.
    pub body: Value,
    /// The header `Content-Type`.
    pub content_type: String,
}

struct Watcher {
    /// `group/plural` of what it watches.
    collection: String,
    namespace: Option<String>,
    name: Option<String>,
    /// `key=value`, several separated by commas; empty: all.
    labels: String,
    /// The version up to which it has all events.
    sent: u64,
    sender: mpsc::Sender<Line>,
}

/// A change of an object.
struct Change {
    version: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    event: &'static str,
    collection: String,
    object: Value,
    /// Its state before the change.
    before: Option<Value>,
}

struct Refusal {
    method: Method,
    path: String,
    /// The answer.
    status: Value,
    /// `None`: for ever.
    times: Option<usize>,
}

/// What becomes of the next request for a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// It is never answered.
    Hang,
    /// It is carried out, and its answer is lost.
    LoseAnswer,
    /// The task that sent it panics.
    Panic,
}

#[derive(Default)]
struct State {
    version: u64,
    /// By collection, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    /// All events, for watches from an older version.
    history: Vec<Change>,
    /// A watch from a version before this one is answered 410.
    compacted: u64,
    watchers: Vec<Watcher>,
    missing: HashSet<String>,
    refusals: Vec<Refusal>,
    requests: Vec<ApiRequest>,
    traps: Vec<(String, InjectedFault)>,
    down: bool,
    silent: bool,
    /// Collections whose events are held back.
    held: BTreeSet<String>,
    ends_watches_at_once: bool,
    /// Each applied before the next patch or deletion of a path that contains the word.
    interruptions: Vec<(&'static str, Interruption)>,
    /// How many names were made of `generateName`.
    named: u64,
    /// Answers at exactly one path: an object, or the items of a list.
    objects_at: BTreeMap<String, Value>,
    lists_at: BTreeMap<String, Vec<Value>>,
    /// `verb resource` that access reviews deny, with its subresource.
    denied: BTreeSet<String>,
    /// After this many access reviews, all are allowed.
    allows_after: Option<usize>,
    reviews: Vec<AccessReview>,
}

/// An access review that the server has received.
#[derive(Debug, Clone)]
pub struct AccessReview {
    /// Where it was posted: its kind.
    pub path: String,
    /// The user whose permissions it asks for; `None`: the sender.
    pub user: Option<String>,
    /// The verb, the resource and the namespace.
    pub attributes: Value,
}

/// A scripted API server. Clones are the same server.
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<State>>);

impl ApiServer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A client whose requests this server answers, without a network.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// Writes an object. `collection` is like `apps/deployments` or `pods`. For a slice, its pods are written first.
    pub fn put(&self, collection: &str, object: Value) {
        for endpoint in object["endpoints"].as_array().into_iter().flatten() {
            let target = &endpoint["targetRef"];
            let text = |field: &str| target[field].as_str().unwrap_or_default();
            if text("kind") == "Pod" && self.get("pods", text("namespace"), text("name")).is_none() {
                let meta =
                    json!({"name": target["name"], "namespace": target["namespace"], "uid": target["uid"]});
                let ips = json!([{"ip": endpoint["addresses"][0]}]);
                self.put_alone("pods", json!({"metadata": meta, "spec": {}, "status": {"podIPs": ips}}));
            }
        }
        self.put_alone(collection, object);
    }

    /// Writes an object, without the pods of a slice.
    pub fn put_alone(&self, collection: &str, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        let meta = object["metadata"].as_object_mut().unwrap();
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = (collection.to_owned(), text(meta.get("namespace")), text(meta.get("name")));
        meta.insert("resourceVersion".into(), version.to_string().into());
        meta.entry("uid").or_insert_with(|| format!("uid-of-{}-{}", key.1, key.2).into());
        meta.entry("creationTimestamp").or_insert("2024-01-01T00:00:00Z".into());
        meta.entry("managedFields").or_insert(json!([{"manager": "another", "fieldsV1": {"f:x": {}}}]));
        let before = state.objects.insert(key, object.clone());
        let event = if before.is_some() { "MODIFIED" } else { "ADDED" };
        state.record(event, collection, object, before);
    }

    /// Deletes an object.
    pub fn delete(&self, collection: &str, namespace: &str, name: &str) {
        let mut state = self.state();
        let key = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = state.objects.remove(&key).unwrap();
        let before = Some(object.clone());
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.record("DELETED", collection, object, before);
    }

    /// All objects of a collection.
    pub fn all(&self, collection: &str) -> Vec<Value> {
        let state = self.state();
        let all = state.objects.iter().filter(|((of, ..), _)| of == collection);
        all.map(|(_, object)| object.clone()).collect()
    }

    /// An object, if it is there.
    pub fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        self.state().objects.get(&key).cloned()
    }

    /// The newest resource version.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Answers a request for exactly this path with an object.
    pub fn object_at(&self, path: &str, object: Value) {
        self.state().objects_at.insert(path.to_owned(), object);
    }

    /// Answers a request for exactly this path with a list of these items.
    pub fn list_at(&self, path: &str, items: Vec<Value>) {
        self.state().lists_at.insert(path.to_owned(), items);
    }

    /// Answers discovery of an API group with one version and these resources.
    pub fn group(&self, group: &str, version: &str, resources: &[&str]) {
        let resources: Vec<Value> = resources.iter().map(|name| json!({"name": name})).collect();
        self.object_at(&format!("/apis/{group}"), json!({"versions": [{"version": version}]}));
        self.object_at(&format!("/apis/{group}/{version}"), json!({"resources": resources}));
    }

    /// Removes the objects and lists whose path begins like this.
    pub fn remove_at(&self, path: &str) {
        let mut state = self.state();
        state.objects_at.retain(|known, _| !known.starts_with(path));
        state.lists_at.retain(|known, _| !known.starts_with(path));
    }

    /// Access reviews deny `patch deployments/scale`, or the like.
    pub fn deny(&self, what: &str) {
        self.state().denied.insert(what.to_owned());
    }

    /// After this many access reviews, all are allowed.
    pub fn allow_after(&self, reviews: usize) {
        self.state().allows_after = Some(reviews);
    }

    /// All access reviews so far.
    pub fn reviews(&self) -> Vec<AccessReview> {
        self.state().reviews.clone()
    }

    /// Sets whether a kind is not installed.
    pub fn set_missing(&self, collection: &str, missing: bool) {
        let mut state = self.state();
        if missing {
            state.missing.insert(collection.into());
        } else {
            state.missing.remove(collection);
        }
    }

    /// Refuses requests whose path and query contain all words of `path`, this many times; `None`: always.
    pub fn refuse(&self, method: Method, path: &str, code: u16, reason: &str, times: Option<usize>) {
        self.refuse_with(method, path, status(code, reason), times);
    }

    /// The same with this `Status` as the answer.
    pub fn refuse_with(&self, method: Method, path: &str, status: Value, times: Option<usize>) {
        self.state().refusals.push(Refusal { method, path: path.to_owned(), status, times });
    }

    /// Hangs or panics at the next request whose path and query contain `path`.
    pub fn trap(&self, path: &str, trap: InjectedFault) {
        self.state().traps.push((path.to_owned(), trap));
    }

    fn trapped(&self, uri: &str) -> Option<InjectedFault> {
        let mut state = self.state();
        let place = state.traps.iter().position(|(path, _)| uri.contains(path.as_str()))?;
        Some(state.traps.remove(place).1)
    }

    /// Refuses no further request.
    pub fn allow_all(&self) {
        self.state().refusals.clear();
    }

    /// Sets whether the server is down: it accepts no connection, and all watches are cut.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
        if down {
            self.cut();
        }
    }

    /// Cuts the connections of all watches.
    pub fn cut(&self) {
        for watcher in self.state().watchers.drain(..) {
            drop(
                watcher
                    .sender
                    .try_send(Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut by the test"))),
            );
        }
    }

    /// Ends all watches, as after their timeout.
    pub fn end_watches(&self) {
        self.state().watchers.clear();
    }

    /// Makes all versions up to now too old, and sends that error (410) on all watches.
    pub fn expire(&self) {
        let mut state = self.state();
        state.version += 1;
        state.compacted = state.version;
        let gone = json!({"type": "ERROR", "object": status(410, "too old resource version")});
        for watcher in state.watchers.drain(..) {
            drop(watcher.sender.try_send(Ok(line(&gone))));
        }
    }

    /// Sends a bookmark on all watches.
    pub fn bookmark(&self) {
        let mut state = self.state();
        state.version += 1;
        let mark = json!({"type": "BOOKMARK", "object":
            {"kind": "X", "apiVersion": "v1", "metadata": {"resourceVersion": state.version.to_string()}}});
        for watcher in &state.watchers {
            drop(watcher.sender.try_send(Ok(line(&mark))));
        }
    }

    /// Sets whether watches stay open without events.
    pub fn set_silent(&self, silent: bool) {
        self.state().silent = silent;
    }

    /// Holds back the events of a collection, as a watch that lags behind. Lists are not affected.
    pub fn hold_events(&self, collection: &str) {
        self.state().held.insert(collection.to_owned());
    }

    /// Sends the events that were held back.
    pub fn release_events(&self, collection: &str) {
        let state = &mut *self.state();
        state.held.remove(collection);
        for watcher in state.watchers.iter_mut().filter(|watcher| watcher.collection == collection) {
            watcher.catch_up(&state.history);
        }
    }

    /// Ends each watch as soon as it begins.
    pub fn end_watches_at_once(&self) {
        self.state().ends_watches_at_once = true;
    }

    /// Restores etcd from a backup of `version`, with the objects that `keep` selects.
    pub fn restore(&self, version: u64, keep: impl Fn(&Value) -> bool) {
        let mut state = self.state();
        state.version = version;
        state.objects.retain(|_, object| keep(object));
        state.history.retain(|change| change.version <= version);
        // A connection that is dead already does not end either.
        if !state.silent {
            state.watchers.clear();
        }
        for watcher in &mut state.watchers {
            watcher.sent = watcher.sent.min(version);
        }
    }

    /// Applies `change` between a read and the next patch or deletion that follows from it, of a path that contains `path`.
    pub fn before_next_write(&self, path: &'static str, change: impl FnOnce(&ApiServer) + Send + 'static) {
        self.state().interruptions.push((path, Box::new(change)));
    }

    /// All requests so far for which `fits` is true.
    pub fn requests(&self, fits: impl Fn(&ApiRequest) -> bool) -> Vec<ApiRequest> {
        self.state().requests.iter().filter(|request| fits(request)).cloned().collect()
    }

    /// All patches of a subresource.
    pub fn patches(&self, subresource: &str) -> Vec<ApiRequest> {
        self.requests(|request| {
            request.method == Method::PATCH && request.path.ends_with(&format!("/{subresource}"))
        })
    }

    /// How many watches of a collection are open.
    pub fn watchers(&self, collection: &str) -> usize {
        let state = self.state();
        state
            .watchers
            .iter()
            .filter(|watcher| watcher.collection == collection && !watcher.sender.is_closed())
            .count()
    }

    fn answer(&self, asked: &ApiRequest) -> Result<Answer, io::Error> {
        let mut state = self.state();
        if state.down {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused"));
        }
        state.requests.push(asked.clone());
        let place = state.refusals.iter().position(|refusal| {
            let whole = format!("{}?{}", asked.path, asked.query);
            refusal.method == asked.method
                && refusal.path.split(' ').all(|part| whole.contains(part))
                && refusal.times != Some(0)
        });
        if let Some(refusal) = place.and_then(|place| state.refusals.get_mut(place)) {
            refusal.times = refusal.times.map(|times| times - 1);
            let code = refusal.status["code"].as_u64().and_then(|code| code.try_into().ok());
            return Ok(whole(code.unwrap(), &refusal.status));
        }
        if asked.method == Method::POST && asked.path.ends_with("accessreviews") {
            return Ok(whole(201, &state.review(asked)));
        }
        if let Some(object) = state.objects_at.get(&asked.path) {
            return Ok(whole(200, object));
        }
        let query: BTreeMap<String, String> = asked
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), decoded(value)))
            .collect();
        if let Some(items) = state.lists_at.get(&asked.path) {
            return Ok(page(items.iter().collect(), 2, &query, state.version));
        }
        let Some(target) = Target::parse(&asked.path) else {
            return Ok(whole(404, &status(404, "no such path")));
        };
        if state.missing.contains(&target.collection) {
            return Ok(whole(404, &status(404, "the server could not find the requested resource")));
        }
        match (&asked.method, target.name.clone()) {
            (&Method::GET, None) if query.contains_key("watch") => Ok(state.watch(&target, &query)),
            (&Method::GET, None) => Ok(state.list(&target, &query)),
            (&Method::POST, None) => {
                drop(state);
                Ok(self.create(&target, &asked.body))
            }
            (&Method::DELETE, Some(name)) => {
                drop(state);
                self.interrupt(asked);
                Ok(self.remove(&target, &name, &asked.body))
            }
            (&Method::GET, Some(name)) => Ok(state.look(&target, &name)),
            (&Method::PATCH, Some(name)) => {
                drop(state);
                self.interrupt(asked);
                Ok(self.patch(&target, &name, asked))
            }
            _ => Ok(whole(405, &status(405, "not here"))),
        }
    }

    /// Applies the changes that are due before a write.
    fn interrupt(&self, write: &ApiRequest) {
        let mut state = self.state();
        let due: Vec<_> =
            state.interruptions.extract_if(.., |(path, _)| write.path.contains(*path)).collect();
        drop(state);
        for (_, change) in due {
            change(self);
        }
    }

    fn patch(&self, target: &Target, name: &str, asked: &ApiRequest) -> Answer {
        let namespace = target.namespace.clone().unwrap_or_default();
        let Some(mut object) = self.get(&target.collection, &namespace, name) else {
            return whole(404, &status(404, &format!("{} {name:?} not found", target.collection)));
        };
        let version = asked.body.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if version.is_some_and(|version| object["metadata"]["resourceVersion"] != version) {
            return whole(409, &status(409, "the object has been modified"));
        }
        match target.sub.as_deref() {
            Some("scale") => object["spec"]["replicas"] = asked.body["spec"]["replicas"].clone(),
            Some("status") => object["status"]["conditions"] = asked.body["status"]["conditions"].clone(),
            None => write::merge(&mut object, &asked.body),
            Some(_) => return whole(405, &status(405, "not here")),
        }
        self.put_alone(&target.collection, object);
        whole(200, &self.get(&target.collection, &namespace, name).unwrap())
    }
}

/// `/apis/g/v/namespaces/ns/plural/name/sub`, taken apart.
struct Target {
    collection: String,
    namespace: Option<String>,
    name: Option<String>,
    sub: Option<String>,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let mut parts = path.split('/').skip(1);
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        parts.next()?;
        let mut rest: Vec<&str> = parts.collect();
        let namespace = (rest.first() == Some(&"namespaces") && rest.len() > 2).then(|| {
            rest.remove(0);
            rest.remove(0).to_owned()
        });
        let mut rest = rest.into_iter().map(str::to_owned);
        let plural = rest.next()?;
        let collection = if group.is_empty() { plural } else { format!("{group}/{plural}") };
        Some(Self { collection, namespace, name: rest.next(), sub: rest.next() })
    }
}

impl State {
    fn record(&mut self, event: &'static str, collection: &str, object: Value, before: Option<Value>) {
        let version = self.version;
        self.history.push(Change { version, event, collection: collection.to_owned(), object, before });
        if self.held.contains(collection) {
            return;
        }
        for watcher in self.watchers.iter_mut().filter(|watcher| watcher.collection == collection) {
            if self.silent {
                // It never gets this one.
                watcher.sent = version;
            } else {
                watcher.catch_up(&self.history);
            }
        }
    }

    fn list(&self, target: &Target, query: &BTreeMap<String, String>) -> Answer {
        let name = query.get("fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name="));
        let all = self.objects.iter().filter(|((collection, namespace, called), _)| {
            *collection == target.collection
                && target.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
                && name.is_none_or(|wanted| wanted == called)
        });
        page(all.map(|(_, object)| object).collect(), 3, query, self.version)
    }

    fn review(&mut self, request: &ApiRequest) -> Value {
        let attributes = request.body["spec"]["resourceAttributes"].clone();
        let text = |field: &str| attributes[field].as_str().unwrap_or_default().to_owned();
        let resource = match text("subresource") {
            sub if sub.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        let user = request.body["spec"]["user"].as_str().map(str::to_owned);
        let (path, of) = (request.path.clone(), attributes.clone());
        self.reviews.push(AccessReview { path, user, attributes: of });
        let all = self.allows_after.is_some_and(|after| self.reviews.len() > after);
        let allowed = all || !self.denied.contains(&format!("{} {resource}", text("verb")));
        json!({"kind": "Review", "metadata": {}, "spec": {}, "status": {"allowed": allowed}})
    }

    fn watch(&mut self, target: &Target, query: &BTreeMap<String, String>) -> Answer {
        let version: u64 = query.get("resourceVersion").unwrap().parse().unwrap();
        let (sender, receiver) = mpsc::channel(10_000);
        let name = query.get("fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name="));
        let mut watcher = Watcher {
            collection: target.collection.clone(),
            namespace: target.namespace.clone(),
            name: name.map(str::to_owned),
            labels: query.get("labelSelector").cloned().unwrap_or_default(),
            sent: version,
            sender,
        };
        if version < self.compacted {
            let gone = json!({"type": "ERROR", "object": status(410, "too old resource version")});
            drop(watcher.sender.try_send(Ok(line(&gone))));
        } else {
            if !self.held.contains(&watcher.collection) {
                watcher.catch_up(&self.history);
            }
            if !self.ends_watches_at_once {
                self.watchers.push(watcher);
            }
        }
        Response::new(Either::Right(Lines(receiver)))
    }

    fn look(&self, target: &Target, name: &str) -> Answer {
        let key = (target.collection.clone(), target.namespace.clone().unwrap_or_default(), name.to_owned());
        match self.objects.get(&key) {
            Some(object) => whole(200, object),
            None => whole(404, &status(404, &format!("{} {name:?} not found", target.collection))),
        }
    }
}

impl Watcher {
    /// Sends the changes that it does not have.
    fn catch_up(&mut self, history: &[Change]) {
        let first = history.partition_point(|change| change.version <= self.sent);
        for change in history.iter().skip(first) {
            self.sent = change.version;
            if let Some(event) = self.event(change) {
                drop(self.sender.try_send(Ok(line(&event))));
            }
        }
    }

    /// A change as this watch reports it.
    fn event(&self, change: &Change) -> Option<Value> {
        let (is, was) = (&change.object, change.before.as_ref());
        let wanted = self.wants(&change.collection, is);
        // An object that leaves the selection is reported as deleted, in its old state.
        let leaves = was.filter(|was| !wanted && self.wants(&change.collection, was));
        if let Some(was) = leaves {
            let mut object = was.clone();
            object["metadata"]["resourceVersion"] = is["metadata"]["resourceVersion"].clone();
            return Some(json!({"type": "DELETED", "object": object}));
        }
        let enters = was.is_some_and(|was| !self.wants(&change.collection, was));
        let event = if enters { "ADDED" } else { change.event };
        wanted.then(|| json!({"type": event, "object": is}))
    }

    fn wants(&self, collection: &str, object: &Value) -> bool {
        self.collection == collection
            && self.namespace.as_ref().is_none_or(|namespace| object["metadata"]["namespace"] == **namespace)
            && self.name.as_ref().is_none_or(|name| object["metadata"]["name"] == **name)
            && has_labels(object, &self.labels)
    }
}

/// One page of a list, with at most `most` items, so that lists have several. The continue token is the index of the next
/// item.
fn page(all: Vec<&Value>, most: usize, query: &BTreeMap<String, String>, version: u64) -> Answer {
    let labels = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let all: Vec<&Value> = all.into_iter().filter(|item| has_labels(item, labels)).collect();
    let from: usize = query.get("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
    let limit: usize = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(500).min(most);
    let items: Vec<&&Value> = all.iter().skip(from).take(limit).collect();
    let more = from + items.len() < all.len();
    let next = if more { (from + items.len()).to_string() } else { String::new() };
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
    whole(200, &json!({"kind": "List", "metadata": metadata, "items": items}))
}

/// Whether an object has these labels: `key=value`, several separated by commas; empty: all.
fn has_labels(object: &Value, labels: &str) -> bool {
    let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    pairs.all(|(key, value)| object["metadata"]["labels"][key] == value)
}

fn decoded(value: &str) -> String {
    value.replace("%3D", "=").replace("%2F", "/").replace("%2C", ",")
}

fn line(value: &Value) -> Bytes {
    // Like the API server, the type comes first.
    format!("{{\"type\":{},\"object\":{}}}\n", value["type"], value["object"]).into()
}

fn whole(code: u16, value: &Value) -> Answer {
    let body = Either::Left(Full::new(Bytes::from(value.to_string())));
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
           "reason": "X", "code": code})
}
