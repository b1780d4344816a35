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
        let spec = json!({
            "target": self.target(json!({ "service": self.service })),
            "rules": [{ "hosts": self.hosts }],
            "scalingMetric": { "concurrency": { "targetValue": 100 } },
        });
        self.of_kind("http.keda.sh/v1beta1", "InterceptorRoute", spec)
    }

    /// As an `HTTPScaledObject` of the Deployment with the Service's name.
    pub(crate) fn scaled_object(self) -> Value {
        let spec = json!({
            "hosts": self.hosts,
            "scaleTargetRef": self.target(json!({ "name": self.service, "service": self.service })),
            "replicas": { "min": 0, "max": 10 },
        });
        self.of_kind("http.keda.sh/v1alpha1", "HTTPScaledObject", spec)
    }

    /// A reference to its Service, with the port.
    fn target(&self, mut reference: Value) -> Value {
        merge(&mut reference, &self.port);
        reference
    }

    fn of_kind(&self, api_version: &str, kind: &str, mut spec: Value) -> Value {
        merge(&mut spec, &self.spec);
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": { "name": self.name, "annotations": self.annotations },
            "spec": spec,
        })
    }
}
