//! The rig: a `SliceController` that follows the scripted API server, and the objects of a shop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use prometheus_client::registry::Registry as Metrics;
use rouse_kube::slices::{SliceController, SliceSettings};
use rouse_kube::tasks::TaskEnded;
use rouse_net::clock::TokioClock;
use rouse_testkit::api_server::{ApiRequest, ApiServer};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

pub(crate) const SLICES: &str = "discovery.k8s.io/endpointslices";

pub(crate) struct Rig {
    pub(crate) api: ApiServer,
    pub(crate) controller: Arc<SliceController>,
    metrics: Metrics,
    cancel: CancellationToken,
    run: Option<JoinHandle<Result<(), TaskEnded>>>,
}

impl Rig {
    /// Starts to follow `api`.
    pub(crate) fn start(api: &ApiServer) -> Self {
        Self::with(api, |_| {})
    }

    /// The same with changed settings.
    pub(crate) fn with(api: &ApiServer, change: impl FnOnce(&mut SliceSettings)) -> Self {
        let mut settings = SliceSettings::new(Arc::new(TokioClock::new()), 1);
        change(&mut settings);
        let controller = SliceController::new(api.client(), settings);
        let mut metrics = Metrics::default();
        controller.register_metrics(&mut metrics);
        let cancel = CancellationToken::new();
        let run = Arc::clone(&controller).run(cancel.clone());
        #[expect(clippy::disallowed_methods, reason = "the rig is the owner, and joins it")]
        let run = Some(tokio::spawn(run));
        Self { api: api.clone(), controller, metrics, cancel, run }
    }

    /// Starts, and has written everything.
    pub(crate) async fn settled(api: &ApiServer) -> Self {
        let rig = Self::start(api);
        rig.settle().await;
        rig
    }

    /// Waits until nothing is left to do, also by what the last writes cause.
    pub(crate) async fn settle(&self) {
        timeout(Duration::from_mins(10), self.controller.synced()).await.expect("synced");
        let mut quiet = 0;
        let deadline = Instant::now() + Duration::from_mins(10);
        while quiet < 4 {
            assert!(Instant::now() < deadline, "never settled: {:?}", self.controller.problems());
            pass(Duration::from_secs(1)).await;
            quiet = if self.controller.is_settled() { quiet + 1 } else { 0 };
        }
    }

    /// Waits until `is` returns true.
    pub(crate) async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(10);
        while !is(self) {
            assert!(Instant::now() < deadline, "never: {what}; {:?}", self.controller.problems());
            pass(Duration::from_millis(5)).await;
        }
    }

    /// The slices of a service that we manage.
    pub(crate) fn slices(&self, service: &str) -> Vec<Value> {
        slices(&self.api, service)
    }

    /// The endpoints in these slices, as [`endpoint_text`].
    pub(crate) fn endpoints(&self, service: &str) -> Vec<String> {
        let slices = self.slices(service);
        let mut all: Vec<String> = slices.iter().flat_map(endpoint_texts).collect();
        all.sort();
        all
    }

    /// Waits until a service has exactly these endpoints.
    pub(crate) async fn until_endpoints(&self, service: &str, expected: &[&str]) {
        let what = format!("{service} has {expected:?}");
        self.until(&what, |rig| rig.endpoints(service) == expected).await;
    }

    /// The writes of slices so far.
    pub(crate) fn writes(&self) -> Vec<ApiRequest> {
        self.api.requests(|request| request.method != Method::GET)
    }

    /// The value of a series: `name` or `name{label="value"}`.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(line.parse().unwrap())
    }

    /// Asserts the values of series.
    #[track_caller]
    pub(crate) fn check_metrics(&self, expected: &[(&str, f64)]) {
        for (series, value) in expected {
            let name = format!("endpoint_slice_controller_{series}");
            assert_eq!(self.metric(&name), Some(*value), "{name}");
        }
    }

    /// Ends it, and checks that all tasks ended well.
    pub(crate) async fn stop(mut self) {
        self.cancel.cancel();
        let run = self.run.take().unwrap();
        timeout(Duration::from_mins(1), run)
            .await
            .expect("ends")
            .expect("no panic")
            .expect("nothing ended early");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Lets the other tasks run for this paused time.
pub(crate) async fn pass(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// The slices of a service that we manage.
pub(crate) fn slices(api: &ApiServer, service: &str) -> Vec<Value> {
    let mut all = api.all(SLICES);
    all.retain(|slice| {
        let labels = &slice["metadata"]["labels"];
        labels["endpointslice.kubernetes.io/managed-by"] == "rouse.dev"
            && labels["kubernetes.io/service-name"] == service
    });
    all
}

/// Each endpoint as `pod address:port conditions`, with `r`, `s` and `t` for the conditions that are true.
fn endpoint_texts(slice: &Value) -> Vec<String> {
    let port = &slice["ports"][0]["port"];
    let endpoints = slice["endpoints"].as_array().unwrap();
    let text = |endpoint: &Value| {
        let is = |(name, short): (&str, &'static str)| {
            if endpoint["conditions"][name] == true { short } else { "" }
        };
        let conditions = [("ready", "r"), ("serving", "s"), ("terminating", "t")].map(is).concat();
        let address = endpoint["addresses"][0].as_str().unwrap();
        format!("{} {address}:{port} {conditions}", endpoint["targetRef"]["name"].as_str().unwrap())
    };
    endpoints.iter().map(text).collect()
}

/// The names of the pods in slices; panics if one is there twice.
pub(crate) fn pod_names(slices: &[Value]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in slices.iter().flat_map(endpoint_texts) {
        assert!(names.insert(text.clone()), "{text} is there twice");
    }
    names
}

/// A Service without a selector whose annotation names the pods with this label `app`.
pub(crate) fn service(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("{name}-uid"), "labels": {"team": "a"},
            "annotations": {"rouse.dev/selector": format!("app={name}")},
            "creationTimestamp": "2025-01-01T00:00:00Z",
        },
        "spec": {
            "clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    })
}

/// A ready pod `APP-N` at 10.0.0.N on node `n1`.
pub(crate) fn pod(app: &str, n: u32) -> Value {
    let [_, a, b, c] = n.to_be_bytes();
    json!({
        "metadata": {
            "name": format!("{app}-{n}"), "namespace": "shop", "uid": format!("{app}-{n}-uid"),
            "labels": {"app": app},
        },
        "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": format!("10.{a}.{b}.{c}")}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2025-02-01T00:00:00Z"}],
        },
    })
}

/// The pod, not ready since a time.
pub(crate) fn unready(mut pod: Value, since: &str) -> Value {
    pod["status"]["conditions"][0] = json!({"type": "Ready", "status": "False", "lastTransitionTime": since});
    pod
}

/// The pod, being deleted.
pub(crate) fn leaving(mut pod: Value) -> Value {
    pod["metadata"]["deletionTimestamp"] = json!("2025-03-01T00:00:30Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    pod
}

/// A node in a zone.
pub(crate) fn node(name: &str, zone: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}})
}

/// Service `cart` with these pods, on node `n1` in zone `a`.
pub(crate) fn shop(pods: &[u32]) -> ApiServer {
    let api = ApiServer::default();
    api.put("nodes", node("n1", "a"));
    api.put("services", service("cart"));
    for n in pods {
        api.put("pods", pod("cart", *n));
    }
    api
}

/// Changes an object.
pub(crate) fn edit(api: &ApiServer, collection: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let mut object = api.get(collection, "shop", name).unwrap();
    change(&mut object);
    api.put_alone(collection, object);
}
