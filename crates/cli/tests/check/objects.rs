//! The objects of a healthy cluster, for the scripted API server.

use http::Method;
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};

/// A healthy cluster.
pub(crate) fn good_cluster() -> ApiServer {
    let api = ApiServer::default();
    api.object_at("/version", json!({"major": "1", "minor": "36+", "gitVersion": "v1.36.4"}));
    api.group("discovery.k8s.io", "v1", &["endpointslices"]);
    let routes = ["interceptorroutes", "interceptorroutes/status"];
    api.group("http.keda.sh", "v1beta1", &routes);
    api.list_at(
        "/apis/http.keda.sh/v1beta1/interceptorroutes",
        vec![route("shop", "cart", "cart.example.com")],
    );
    api.list_at("/apis/http.keda.sh/v1alpha1/httpscaledobjects", Vec::new());
    let labels = json!({"app": "gateway", "more": "x"});
    api.object_at(
        "/apis/apps/v1/namespaces/rouse-system/deployments/rouse-gateway",
        json!({"metadata": {"name": "rouse-gateway"},
               "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "gateway"}},
                        "template": {"metadata": {"labels": labels}, "spec": {"serviceAccountName": "rouse-gateway", "containers": [{"name": "sidecar", "image": "other:1"}, {"name": "gateway", "image": "registry.example.com/rouse:9"}]}}},
               "status": {"availableReplicas": 2}}),
    );
    let pods = (0..3).map(|n| pod(&format!("rouse-gateway-{n}"), "True")).collect();
    api.list_at("/api/v1/namespaces/rouse-system/pods", pods);
    api.list_at(
        "/api/v1/namespaces/rouse-system/services",
        vec![
            json!({"metadata": {"name": "rouse-gateway"}, "spec": {"selector": {"app": "gateway"}}}),
            json!({"metadata": {"name": "somebody-elses"}, "spec": {"selector": {"app": "other"}}}),
            json!({"metadata": {"name": "without-selector"}, "spec": {}}),
        ],
    );
    api.list_at(
        "/apis/discovery.k8s.io/v1/namespaces/rouse-system/endpointslices",
        vec![slice("rouse-gateway", true), slice("somebody-elses", false)],
    );
    api.list_at("/api/v1/services", vec![service("cart", &json!({}))]);
    api
}

/// Refuses requests to paths that contain `path` with 403.
pub(crate) fn forbid(api: &ApiServer, path: &str) {
    for method in [Method::GET, Method::POST] {
        api.refuse(method, path, 403, "you may not", None);
    }
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
