//! An API server in memory: lists, watches with history and bookmarks, patches with versions. It does what a test
//! tells it: cut, expire, refuse, fall silent, go back in time, never answer.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Either, Full};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

type Line = Result<Bytes, io::Error>;
type Answer = Response<Either<Full<Bytes>, Lines>>;
type Interloper = Box<dyn FnOnce(&Api) + Send>;

/// The body of a watch.
pub(crate) struct Lines(mpsc::Receiver<Line>);

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

/// A request, as it was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
    pub(crate) content_type: String,
}

struct Watcher {
    /// `group/plural` of what it watches.
    collection: String,
    namespace: Option<String>,
    name: Option<String>,
    sender: mpsc::Sender<Line>,
}

struct Refusal {
    method: Method,
    path: String,
    code: u16,
    reason: String,
    /// `None`: for ever.
    times: Option<usize>,
}

/// What becomes of whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trap {
    /// They wait for ever.
    Hang,
    /// Their task ends.
    Panic,
}

#[derive(Default)]
struct State {
    version: u64,
    /// By collection, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    /// Everything that happened, for watches from an older version.
    history: Vec<(u64, &'static str, String, Value)>,
    /// Older versions are too old.
    compacted: u64,
    watchers: Vec<Watcher>,
    missing: HashSet<String>,
    refusals: Vec<Refusal>,
    asked: Vec<Asked>,
    /// Whoever asks for one of these gets no answer, or comes to grief, once.
    traps: Vec<(String, Trap)>,
    down: bool,
    silent: bool,
    curt: bool,
    /// Done between the look at a scale and its change.
    interlopers: Vec<Interloper>,
}

/// The API server.
#[derive(Clone, Default)]
pub(crate) struct Api(Arc<Mutex<State>>);

impl Api {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// Writes an object. `collection` is like `apps/deployments` or `pods`. The pods of a slice are there before it.
    pub(crate) fn put(&self, collection: &str, object: Value) {
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

    /// Writes an object, and nothing that belongs to it.
    pub(crate) fn put_alone(&self, collection: &str, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        let meta = object["metadata"].as_object_mut().unwrap();
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = (collection.to_owned(), text(meta.get("namespace")), text(meta.get("name")));
        meta.insert("resourceVersion".into(), version.to_string().into());
        meta.entry("uid").or_insert_with(|| format!("uid-of-{}-{}", key.1, key.2).into());
        meta.entry("creationTimestamp").or_insert("2024-01-01T00:00:00Z".into());
        meta.entry("managedFields").or_insert(json!([{"manager": "somebody", "fieldsV1": {"f:x": {}}}]));
        let event = if state.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        state.objects.insert(key, object.clone());
        state.happened(event, collection, object);
    }

    pub(crate) fn delete(&self, collection: &str, namespace: &str, name: &str) {
        let mut state = self.state();
        let key = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = state.objects.remove(&key).unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.happened("DELETED", collection, object);
    }

    pub(crate) fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        self.state().objects.get(&key).cloned()
    }

    pub(crate) fn version(&self) -> u64 {
        self.state().version
    }

    /// This kind is not installed, or is from now on.
    pub(crate) fn set_missing(&self, collection: &str, missing: bool) {
        let mut state = self.state();
        if missing {
            state.missing.insert(collection.into());
        } else {
            state.missing.remove(collection);
        }
    }

    /// Requests whose path and query have all words of `path` in them are refused so many times.
    pub(crate) fn refuse(&self, method: Method, path: &str, code: u16, reason: &str, times: Option<usize>) {
        let (path, reason) = (path.to_owned(), reason.to_owned());
        self.state().refusals.push(Refusal { method, path, code, reason, times });
    }

    /// The next one to ask for something whose path and query have `path` in them falls into a trap.
    pub(crate) fn trap(&self, path: &str, trap: Trap) {
        self.state().traps.push((path.to_owned(), trap));
    }

    fn trapped(&self, uri: &str) -> Option<Trap> {
        let mut state = self.state();
        let place = state.traps.iter().position(|(path, _)| uri.contains(path.as_str()))?;
        Some(state.traps.remove(place).1)
    }

    pub(crate) fn allow_all(&self) {
        self.state().refusals.clear();
    }

    /// Nobody answers, and all connections end; or it is back.
    pub(crate) fn set_down(&self, down: bool) {
        self.state().down = down;
        if down {
            self.cut();
        }
    }

    /// All watches break off in the middle.
    pub(crate) fn cut(&self) {
        for watcher in self.state().watchers.drain(..) {
            drop(
                watcher
                    .sender
                    .try_send(Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut by the test"))),
            );
        }
    }

    /// All watches end, as after their timeout.
    pub(crate) fn end_watches(&self) {
        self.state().watchers.clear();
    }

    /// Everything up to now is too old, and watches are told so.
    pub(crate) fn expire(&self) {
        let mut state = self.state();
        state.version += 1;
        state.compacted = state.version;
        let gone = json!({"type": "ERROR", "object": status(410, "too old resource version")});
        for watcher in state.watchers.drain(..) {
            drop(watcher.sender.try_send(Ok(line(&gone))));
        }
    }

    /// Watches are told where they are.
    pub(crate) fn bookmark(&self) {
        let mut state = self.state();
        state.version += 1;
        let mark = json!({"type": "BOOKMARK", "object":
            {"kind": "X", "apiVersion": "v1", "metadata": {"resourceVersion": state.version.to_string()}}});
        for watcher in &state.watchers {
            drop(watcher.sender.try_send(Ok(line(&mark))));
        }
    }

    /// Watches are told nothing, though they stay open; or everything again.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.state().silent = silent;
    }

    /// Watches end as soon as they begin.
    pub(crate) fn set_curt(&self) {
        self.state().curt = true;
    }

    /// etcd is restored from a backup: what happened since `version` never did.
    pub(crate) fn restore(&self, version: u64, keep: impl Fn(&Value) -> bool) {
        let mut state = self.state();
        state.version = version;
        state.objects.retain(|_, object| keep(object));
        state.history.retain(|(at, ..)| *at <= version);
        // A connection that is dead already does not end either.
        if !state.silent {
            state.watchers.clear();
        }
    }

    /// `happens` between the next look at a scale and the change that follows from it.
    pub(crate) fn in_between(&self, happens: impl FnOnce(&Api) + Send + 'static) {
        self.state().interlopers.push(Box::new(happens));
    }

    /// All requests so far that `fits` is true of.
    pub(crate) fn asked(&self, fits: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        self.state().asked.iter().filter(|asked| fits(asked)).cloned().collect()
    }

    /// All changes of a subresource.
    pub(crate) fn patches(&self, subresource: &str) -> Vec<Asked> {
        self.asked(|asked| asked.method == Method::PATCH && asked.path.ends_with(&format!("/{subresource}")))
    }

    pub(crate) fn watchers(&self, collection: &str) -> usize {
        let state = self.state();
        state
            .watchers
            .iter()
            .filter(|watcher| watcher.collection == collection && !watcher.sender.is_closed())
            .count()
    }

    fn answer(&self, asked: &Asked) -> Result<Answer, io::Error> {
        let mut state = self.state();
        if state.down {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused"));
        }
        state.asked.push(asked.clone());
        let place = state.refusals.iter().position(|refusal| {
            let whole = format!("{}?{}", asked.path, asked.query);
            refusal.method == asked.method
                && refusal.path.split(' ').all(|part| whole.contains(part))
                && refusal.times != Some(0)
        });
        if let Some(refusal) = place.and_then(|place| state.refusals.get_mut(place)) {
            refusal.times = refusal.times.map(|times| times - 1);
            return Ok(whole(refusal.code, &status(refusal.code, &refusal.reason)));
        }
        let Some(target) = Target::parse(&asked.path) else {
            return Ok(whole(404, &status(404, "no such path")));
        };
        if state.missing.contains(&target.collection) {
            return Ok(whole(404, &status(404, "the server could not find the requested resource")));
        }
        let query: BTreeMap<String, String> = asked
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.replace("%3D", "=").replace("%2F", "/")))
            .collect();
        match (&asked.method, target.name.clone()) {
            (&Method::GET, None) if query.contains_key("watch") => Ok(state.watch(&target, &query)),
            (&Method::GET, None) => Ok(state.list(&target, &query)),
            (&Method::POST, None) => Ok(whole(201, &asked.body)),
            (&Method::GET, Some(name)) => Ok(state.look(&target, &name)),
            (&Method::PATCH, Some(name)) => {
                // Whoever comes in between does so before the change is judged.
                let interlopers = std::mem::take(&mut state.interlopers);
                drop(state);
                for interloper in interlopers {
                    interloper(self);
                }
                Ok(self.patch(&target, &name, asked))
            }
            _ => Ok(whole(405, &status(405, "not here"))),
        }
    }

    fn patch(&self, target: &Target, name: &str, asked: &Asked) -> Answer {
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
            _ => return whole(405, &status(405, "not here")),
        }
        self.put(&target.collection, object.clone());
        whole(200, &object)
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
    fn happened(&mut self, event: &'static str, collection: &str, object: Value) {
        let told = line(&json!({"type": event, "object": object}));
        let version = self.version;
        if !self.silent {
            for watcher in self.watchers.iter().filter(|watcher| watcher.wants(collection, &object)) {
                drop(watcher.sender.try_send(Ok(told.clone())));
            }
        }
        self.history.push((version, event, collection.to_owned(), object));
    }

    fn list(&self, target: &Target, query: &BTreeMap<String, String>) -> Answer {
        let name = query.get("fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name="));
        let all = self.objects.iter().filter(|((collection, namespace, called), _)| {
            *collection == target.collection
                && target.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
                && name.is_none_or(|wanted| wanted == called)
        });
        let all: Vec<&Value> = all.map(|(_, object)| object).collect();
        // Pages, as small as it takes to have several: the continue token is simply the next place.
        let from: usize = query.get("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
        let limit: usize = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(500).min(3);
        let page: Vec<&&Value> = all.iter().skip(from).take(limit).collect();
        let more = from + page.len() < all.len();
        let next = if more { (from + page.len()).to_string() } else { String::new() };
        whole(
            200,
            &json!({
                "kind": "List",
                "metadata": {"resourceVersion": self.version.to_string(), "continue": next},
                "items": page,
            }),
        )
    }

    fn watch(&mut self, target: &Target, query: &BTreeMap<String, String>) -> Answer {
        let version: u64 = query.get("resourceVersion").unwrap().parse().unwrap();
        let (sender, receiver) = mpsc::channel(10_000);
        let name = query.get("fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name="));
        let watcher = Watcher {
            collection: target.collection.clone(),
            namespace: target.namespace.clone(),
            name: name.map(str::to_owned),
            sender,
        };
        if version < self.compacted {
            let gone = json!({"type": "ERROR", "object": status(410, "too old resource version")});
            drop(watcher.sender.try_send(Ok(line(&gone))));
        } else {
            for (at, event, collection, object) in &self.history {
                if *at > version && watcher.wants(collection, object) {
                    drop(watcher.sender.try_send(Ok(line(&json!({"type": event, "object": object})))));
                }
            }
            if !self.curt {
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
    fn wants(&self, collection: &str, object: &Value) -> bool {
        self.collection == collection
            && self.namespace.as_ref().is_none_or(|namespace| object["metadata"]["namespace"] == **namespace)
            && self.name.as_ref().is_none_or(|name| object["metadata"]["name"] == **name)
    }
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

impl tower_service::Service<Request<Body>> for Api {
    type Response = Answer;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let api = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            match api.trapped(&head.uri.to_string()) {
                Some(Trap::Hang) => std::future::pending().await,
                Some(Trap::Panic) => panic!("the test asked for it"),
                None => {}
            }
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
            api.answer(&Asked {
                method: head.method,
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                content_type: content_type.unwrap_or_default().to_owned(),
            })
        })
    }
}
