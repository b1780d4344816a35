//! The test app as a Deployment and a Service.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::{Value, json};

use crate::cluster::image;

/// An app: at zero, listening on 8080 behind port 80, with `/healthz` as its readiness probe. Its pods log their requests.
#[derive(Debug, Clone)]
pub(crate) struct App {
    name: String,
    replicas: u32,
    env: BTreeMap<String, String>,
    container_ports: Vec<(String, u16)>,
    service_ports: Vec<Value>,
    service: Value,
    readiness: Option<Value>,
    tls: Option<String>,
    client_ca: bool,
    grace: u32,
    deployment: Value,
}

impl App {
    /// With this name, which is also the label `app` of its pods.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            replicas: 0,
            env: BTreeMap::from([("LOG_REQUESTS".to_owned(), "1".to_owned())]),
            container_ports: vec![("http".to_owned(), 8080)],
            service_ports: vec![json!({ "name": "http", "port": 80, "targetPort": "http" })],
            service: json!({}),
            readiness: Some(json!({ "periodSeconds": 1 })),
            tls: None,
            client_ca: false,
            grace: 10,
            deployment: json!({}),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// With this many replicas from the start.
    pub(crate) fn replicas(self, replicas: u32) -> Self {
        Self { replicas, ..self }
    }

    /// A variable of its environment: see the settings of the test app.
    pub(crate) fn env(mut self, name: &str, value: impl Display) -> Self {
        self.env.insert(name.to_owned(), value.to_string());
        self
    }

    /// Where its container listens, instead of `http` at 8080. The app answers on all of them.
    pub(crate) fn container_ports(self, ports: &[(&str, u16)]) -> Self {
        Self {
            container_ports: ports.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect(),
            ..self
        }
    }

    /// The ports of its Service, instead of `http` at 80: `{"name": "http", "port": 80, "targetPort": "http"}`.
    pub(crate) fn service_ports(self, ports: &[Value]) -> Self {
        Self { service_ports: ports.to_vec(), ..self }
    }

    /// `appProtocol` of its Service's ports: `kubernetes.io/h2c`, `https`.
    pub(crate) fn app_protocol(mut self, protocol: &str) -> Self {
        for port in &mut self.service_ports {
            port["appProtocol"] = json!(protocol);
        }
        self
    }

    /// Merged into its Service: `{"spec": {"clusterIP": "None"}}`, `{"metadata": {"annotations": {…}}}`.
    pub(crate) fn service_with(self, more: Value) -> Self {
        Self { service: more, ..self }
    }

    /// Merged into its Deployment: `{"spec": {"strategy": {…}}}`.
    pub(crate) fn deployment_with(self, more: Value) -> Self {
        Self { deployment: more, ..self }
    }

    /// Merged into its readiness probe: `{"periodSeconds": 5}`.
    pub(crate) fn readiness(self, probe: Value) -> Self {
        Self { readiness: Some(probe), ..self }
    }

    /// Ready as soon as it runs.
    pub(crate) fn without_readiness(self) -> Self {
        Self { readiness: None, ..self }
    }

    /// `terminationGracePeriodSeconds`.
    pub(crate) fn grace(self, seconds: u32) -> Self {
        Self { grace: seconds, ..self }
    }

    /// Speaks TLS with `tls.crt` and `tls.key` of a Secret.
    pub(crate) fn tls(self, secret: &str) -> Self {
        Self { tls: Some(secret.to_owned()), ..self }
    }

    /// Requires client certificates, verified with `ca.crt` of the same Secret.
    pub(crate) fn client_certificates(self) -> Self {
        Self { client_ca: true, ..self }
    }

    pub(crate) fn deployment(&self) -> Value {
        let labels = json!({ "app": self.name });
        let mut deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": self.name },
            "spec": {
                "replicas": self.replicas,
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": self.pod() },
            },
        });
        merge(&mut deployment, &self.deployment);
        deployment
    }

    fn pod(&self) -> Value {
        let ports = self.container_ports.iter();
        let ports: Vec<Value> =
            ports.map(|(name, port)| json!({ "name": name, "containerPort": port })).collect();
        let mut container = json!({
            "name": "app",
            "image": image(),
            "imagePullPolicy": "IfNotPresent",
            "env": self.environment(),
            "ports": ports,
        });
        if let Some(probe) = self.probe() {
            container["readinessProbe"] = probe;
        }
        let mut pod = json!({
            // The token's volume costs about 300 ms of a pod's start, and the app does not need it.
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": self.grace,
            "containers": [container],
        });
        if let Some(secret) = &self.tls {
            pod["volumes"] = json!([{ "name": "tls", "secret": { "secretName": secret } }]);
            pod["containers"][0]["volumeMounts"] = json!([{ "name": "tls", "mountPath": "/tls" }]);
        }
        pod
    }

    fn environment(&self) -> Vec<Value> {
        let ports: Vec<String> = self.container_ports.iter().map(|(_, port)| port.to_string()).collect();
        let (first, others) = ports.split_first().expect("a port");
        let mut all = BTreeMap::from([("HOST", "0.0.0.0".to_owned()), ("PORT", first.clone())]);
        if !others.is_empty() {
            all.insert("MORE_PORTS", others.join(","));
        }
        if self.tls.is_some() {
            all.insert("TLS_CERT", "/tls/tls.crt".to_owned());
            all.insert("TLS_KEY", "/tls/tls.key".to_owned());
        }
        if self.client_ca {
            all.insert("TLS_CLIENT_CA", "/tls/ca.crt".to_owned());
        }
        all.extend(self.env.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let set = all.iter().map(|(name, value)| json!({ "name": name, "value": value }));
        let of_the_pod = [("POD_NAME", "metadata.name"), ("ROUSE_POD_UID", "metadata.uid")];
        let told = of_the_pod
            .iter()
            .map(|(name, path)| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } }));
        set.chain(told).collect()
    }

    fn probe(&self) -> Option<Value> {
        let port = &self.container_ports.first().expect("a port").0;
        let mut probe = self.readiness.clone()?;
        if ["httpGet", "tcpSocket", "grpc", "exec"].iter().any(|kind| probe.get(kind).is_some()) {
            return Some(probe);
        }
        // The kubelet's probe cannot present a client certificate.
        if self.client_ca {
            probe["tcpSocket"] = json!({ "port": port });
        } else {
            let scheme = if self.tls.is_some() { "HTTPS" } else { "HTTP" };
            probe["httpGet"] = json!({ "path": "/healthz", "port": port, "scheme": scheme });
        }
        Some(probe)
    }

    pub(crate) fn service(&self) -> Value {
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.name },
            "spec": { "selector": { "app": self.name }, "ports": self.service_ports },
        });
        merge(&mut service, &self.service);
        service
    }
}

/// Merges `more` into `object`: `null` removes a field.
pub(crate) fn merge(object: &mut Value, more: &Value) {
    let Value::Object(fields) = more else {
        *object = more.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            object.as_object_mut().map(|known| known.remove(name));
        } else {
            merge(&mut object[name.as_str()], value);
        }
    }
}
