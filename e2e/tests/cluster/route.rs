//! A builder for `InterceptorRoute` and `HTTPScaledObject` objects.

use serde_json::{Value, json};

use crate::app::merge;

/// A route to a Service of the same name, port 80.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    name: String,
    service: String,
    port: Value,
    hosts: Vec<String>,
    annotations: Value,
    spec: Value,
}

impl Route {
    pub(crate) fn new(name: &str, host: &str) -> Self {
        Self {
            name: name.to_owned(),
            service: name.to_owned(),
            port: json!({ "port": 80 }),
            hosts: vec![host.to_owned()],
            annotations: json!({}),
            spec: json!({}),
        }
    }

    /// With another name than its Service.
    pub(crate) fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// To another Service.
    pub(crate) fn service(self, service: &str) -> Self {
        Self { service: service.to_owned(), ..self }
    }

    /// To a port by its number.
    pub(crate) fn port(self, port: u16) -> Self {
        Self { port: json!({ "port": port }), ..self }
    }

    /// To a port by its name.
    pub(crate) fn port_name(self, name: &str) -> Self {
        Self { port: json!({ "portName": name }), ..self }
    }

    /// For other hosts.
    pub(crate) fn hosts(self, hosts: &[&str]) -> Self {
        Self { hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), ..self }
    }

    /// With an annotation: `direct-pod-routing` is `rouse.dev/direct-pod-routing`.
    pub(crate) fn annotate(mut self, name: &str, value: &str) -> Self {
        self.annotations[format!("rouse.dev/{name}")] = json!(value);
        self
    }

    /// How long a request waits for a pod: `2s`.
    pub(crate) fn readiness_timeout(self, span: &str) -> Self {
        self.spec(&json!({ "timeouts": { "readiness": span } }))
    }

    /// Merged into its spec: `{"coldStart": {…}}`, `{"rules": […]}`.
    pub(crate) fn spec(mut self, more: &Value) -> Self {
        merge(&mut self.spec, more);
        self
    }

    /// As an `InterceptorRoute`.
    pub(crate) fn object(self) -> Value {
        let mut target = json!({ "service": self.service });
        merge(&mut target, &self.port);
        let mut spec = json!({
            "target": target,
            "rules": [{ "hosts": self.hosts }],
            "scalingMetric": { "concurrency": { "targetValue": 100 } },
        });
        merge(&mut spec, &self.spec);
        json!({
            "apiVersion": "http.keda.sh/v1beta1",
            "kind": "InterceptorRoute",
            "metadata": { "name": self.name, "annotations": self.annotations },
            "spec": spec,
        })
    }

    /// As an `HTTPScaledObject` of the Deployment with the Service's name.
    pub(crate) fn scaled_object(self) -> Value {
        let mut target = json!({ "name": self.service, "service": self.service });
        merge(&mut target, &self.port);
        let mut spec = json!({
            "hosts": self.hosts,
            "scaleTargetRef": target,
            "replicas": { "min": 0, "max": 10 },
        });
        merge(&mut spec, &self.spec);
        json!({
            "apiVersion": "http.keda.sh/v1alpha1",
            "kind": "HTTPScaledObject",
            "metadata": { "name": self.name, "annotations": self.annotations },
            "spec": spec,
        })
    }
}
