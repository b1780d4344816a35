//! A fake API server on a port of its own: it serves the objects that a test gives it, in pages of two, and answers
//! access reviews as the test says. No more than `rouse check` asks; for an API server with watches see the tests of
//! `rouse-kube`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// An access review: where it was asked, for whom, and of what.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) user: Option<String>,
    pub(crate) attributes: Value,
}

#[derive(Default)]
struct State {
    /// By path: a list's items, or an object.
    lists: BTreeMap<String, Vec<Value>>,
    objects: BTreeMap<String, Value>,
    /// `verb resource`, with its subresource.
    denied: BTreeSet<String>,
    /// Beginnings of paths that whoever asks may not ask for.
    forbidden: Vec<String>,
    reviews: Vec<Asked>,
    /// Denials that end after so many reviews.
    relents_after: Option<usize>,
}

/// The API server.
#[derive(Clone, Default)]
pub(crate) struct Api(Arc<Mutex<State>>);

impl Api {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A cluster where everything is as it should be.
    pub(crate) fn good() -> Self {
        let api = Self::default();
        api.object("/version", json!({"major": "1", "minor": "36+", "gitVersion": "v1.36.4"}));
        api.group("discovery.k8s.io", "v1", &["endpointslices"]);
        let routes = ["interceptorroutes", "interceptorroutes/status"];
        api.group("http.keda.sh", "v1beta1", &routes);
        api.list(
            "/apis/http.keda.sh/v1beta1/interceptorroutes",
            vec![route("shop", "cart", "cart.example.com")],
        );
        api.list("/apis/http.keda.sh/v1alpha1/httpscaledobjects", Vec::new());
        let labels = json!({"app": "gateway", "more": "x"});
        api.object(
            "/apis/apps/v1/namespaces/rouse-system/deployments/rouse-gateway",
            json!({"metadata": {"name": "rouse-gateway"},
                   "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "gateway"}},
                            "template": {"metadata": {"labels": labels}, "spec": {"serviceAccountName": "rouse-gateway", "containers": [{"name": "sidecar", "image": "other:1"}, {"name": "gateway", "image": "registry.example.com/rouse:9"}]}}},
                   "status": {"availableReplicas": 2}}),
        );
        let pods = (0..3).map(|n| pod(&format!("rouse-gateway-{n}"), "True")).collect();
        api.list("/api/v1/namespaces/rouse-system/pods", pods);
        api.list(
            "/api/v1/namespaces/rouse-system/services",
            vec![
                json!({"metadata": {"name": "rouse-gateway"}, "spec": {"selector": {"app": "gateway"}}}),
                json!({"metadata": {"name": "somebody-elses"}, "spec": {"selector": {"app": "other"}}}),
                json!({"metadata": {"name": "without-selector"}, "spec": {}}),
            ],
        );
        api.list(
            "/apis/discovery.k8s.io/v1/namespaces/rouse-system/endpointslices",
            vec![slice("rouse-gateway", true), slice("somebody-elses", false)],
        );
        api.list("/api/v1/services", vec![service("cart", &json!({}))]);
        api
    }

    pub(crate) fn object(&self, path: &str, object: Value) {
        self.state().objects.insert(path.to_owned(), object);
    }

    pub(crate) fn list(&self, path: &str, items: Vec<Value>) {
        self.state().lists.insert(path.to_owned(), items);
    }

    pub(crate) fn group(&self, group: &str, version: &str, resources: &[&str]) {
        let resources: Vec<Value> = resources.iter().map(|name| json!({"name": name})).collect();
        self.object(&format!("/apis/{group}"), json!({"versions": [{"version": version}]}));
        self.object(&format!("/apis/{group}/{version}"), json!({"resources": resources}));
    }

    pub(crate) fn remove(&self, path: &str) {
        let mut state = self.state();
        state.objects.retain(|known, _| !known.starts_with(path));
        state.lists.retain(|known, _| !known.starts_with(path));
    }

    /// `patch deployments/scale` is not allowed to whomever is asked for.
    pub(crate) fn deny(&self, what: &str) {
        self.state().denied.insert(what.to_owned());
    }

    /// From so many reviews on, everything is allowed.
    pub(crate) fn relent_after(&self, reviews: usize) {
        self.state().relents_after = Some(reviews);
    }

    /// Whoever asks may not ask for what begins so.
    pub(crate) fn forbid(&self, path: &str) {
        self.state().forbidden.push(path.to_owned());
    }

    pub(crate) fn reviews(&self) -> Vec<Asked> {
        self.state().reviews.clone()
    }

    /// Serves until the answer is dropped.
    pub(crate) async fn serve(&self) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        let router = Router::new().fallback(move |request: Request| {
            let api = api.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = to_bytes(body, 1 << 20).await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) =
                    api.answer(&head.method, head.uri.path(), head.uri.query().unwrap_or_default(), &body);
                let answer = Body::from(answer.to_string());
                Response::builder()
                    .status(code)
                    .header("content-type", "application/json")
                    .body(answer)
                    .unwrap()
            }
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        (address, tasks)
    }

    fn answer(&self, method: &Method, path: &str, query: &str, body: &Value) -> (u16, Value) {
        let mut state = self.state();
        if state.forbidden.iter().any(|start| path.starts_with(&**start)) {
            return (403, status(403, "you may not"));
        }
        if method == Method::POST && path.ends_with("accessreviews") {
            return (201, state.review(path, body));
        }
        if let Some(object) = state.objects.get(path) {
            return (200, object.clone());
        }
        let Some(items) = state.lists.get(path) else { return (404, status(404, "not found")) };
        let query: BTreeMap<&str, String> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key, value.replace("%3D", "=").replace("%2F", "/").replace("%2C", ",")))
            .collect();
        let wanted = query.get("labelSelector").map(String::as_str).unwrap_or_default();
        let fits = |item: &&Value| {
            let mut pairs = wanted.split(',').filter_map(|pair| pair.split_once('='));
            pairs.all(|(key, value)| item["metadata"]["labels"][key] == value)
        };
        let from: usize = query.get("continue").and_then(|next| next.parse().ok()).unwrap_or(0);
        let fitting: Vec<&Value> = items.iter().filter(fits).collect();
        let page: Vec<&&Value> = fitting.iter().skip(from).take(2).collect();
        let more = from + page.len() < fitting.len();
        let next = if more { (from + page.len()).to_string() } else { String::new() };
        (200, json!({"kind": "List", "metadata": {"continue": next}, "items": page}))
    }
}

impl State {
    fn review(&mut self, path: &str, body: &Value) -> Value {
        let attributes = body["spec"]["resourceAttributes"].clone();
        let text = |field: &str| attributes[field].as_str().unwrap_or_default().to_owned();
        let resource = match text("subresource") {
            sub if sub.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        let user = body["spec"]["user"].as_str().map(str::to_owned);
        self.reviews.push(Asked { path: path.to_owned(), user, attributes: attributes.clone() });
        let relents = self.relents_after.is_some_and(|after| self.reviews.len() > after);
        let allowed = relents || !self.denied.contains(&format!("{} {resource}", text("verb")));
        json!({"kind": "Review", "metadata": {}, "spec": {}, "status": {"allowed": allowed}})
    }
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
           "reason": "X", "code": code})
}

pub(crate) fn route(namespace: &str, name: &str, host: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2024-01-01T00:00:00Z"},
           "spec": {"target": {"service": "cart", "port": 80}, "rules": [{"hosts": [host]}],
                    "scalingMetric": {"concurrency": {"targetValue": 10}}}})
}

pub(crate) fn service(name: &str, annotations: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "annotations": annotations},
           "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}]}})
}

pub(crate) fn pod(name: &str, ready: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "gateway"}},
           "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
}

pub(crate) fn slice(service: &str, ready: bool) -> Value {
    json!({"metadata": {"name": format!("{service}-1"), "namespace": "rouse-system", "labels": {"kubernetes.io/service-name": service}},
           "addressType": "IPv4", "ports": [], "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
}
