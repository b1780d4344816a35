//! Requests to the API server: the paths of kinds, error texts and timeouts.

use std::future::Future;
use std::time::Duration;

use rouse_core::start_failure::one_line;
use tokio::time::{Instant, sleep_until, timeout};

/// A kind of object, and its path at the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectKind {
    /// The kind as texts name it: `EndpointSlice`.
    pub(crate) name: &'static str,
    /// Empty for the core group.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    /// Whether the gateway works in a cluster that does not have this kind.
    pub(crate) optional: bool,
}

impl ObjectKind {
    pub(crate) const SLICE: Self =
        Self::new("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices", false);
    pub(crate) const SERVICE: Self = Self::new("Service", "", "v1", "services", false);
    pub(crate) const POD: Self = Self::new("Pod", "", "v1", "pods", false);
    pub(crate) const NODE: Self = Self::new("Node", "", "v1", "nodes", false);
    pub(crate) const CONFIG_MAP: Self = Self::new("ConfigMap", "", "v1", "configmaps", false);
    pub(crate) const SECRET: Self = Self::new("Secret", "", "v1", "secrets", false);
    pub(crate) const EVENT: Self = Self::new("Event", "", "v1", "events", false);
    pub(crate) const LEASE: Self = Self::new("Lease", "coordination.k8s.io", "v1", "leases", false);
    pub(crate) const DEPLOYMENT: Self = Self::new("Deployment", "apps", "v1", "deployments", false);
    pub(crate) const STATEFUL_SET: Self = Self::new("StatefulSet", "apps", "v1", "statefulsets", false);
    pub(crate) const HPA: Self =
        Self::new("HorizontalPodAutoscaler", "autoscaling", "v2", "horizontalpodautoscalers", false);
    pub(crate) const ROUTE: Self =
        Self::new("InterceptorRoute", "http.keda.sh", "v1beta1", "interceptorroutes", true);
    pub(crate) const HTTP_SCALED_OBJECT: Self =
        Self::new("HTTPScaledObject", "http.keda.sh", "v1alpha1", "httpscaledobjects", true);
    pub(crate) const SCALED_OBJECT: Self =
        Self::new("ScaledObject", "keda.sh", "v1alpha1", "scaledobjects", true);

    const fn new(
        name: &'static str,
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        optional: bool,
    ) -> Self {
        Self { name, group, version, plural, optional }
    }

    /// The path of its objects.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        path(self.group, self.version, self.plural, namespace)
    }

    /// As RBAC and people write it: `secrets`, `interceptorroutes.http.keda.sh`.
    pub(crate) fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `group/version`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// The path of the objects of a kind.
pub(crate) fn path(group: &str, version: &str, plural: &str, namespace: Option<&str>) -> String {
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    match namespace {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    }
}

/// Whether the API server answered with this status.
pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The text of an error, in one line: the server's message, or why it could not be reached. The message may quote user
/// input, so line breaks are escaped.
pub(crate) fn describe(error: &kube::Error) -> String {
    one_line(&text(error))
}

fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("the API server answered {}", status.code)
        }
        kube::Error::Api(status) => status.message.clone(),
        kube::Error::SerdeError(error) => format!("the API server's answer cannot be read: {error}"),
        error => {
            let mut text = String::from("the API server cannot be reached");
            let mut source = std::error::Error::source(error);
            // The innermost error names the cause; the outer ones only name the layer.
            while let Some(inner) = source {
                source = inner.source();
                if source.is_none() {
                    text = format!("{text}: {inner}");
                }
            }
            text
        }
    }
}

/// Runs `request`, and fails if it takes longer than `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    let late = || {
        let text = format!("no answer within {} s", limit.as_secs());
        kube::Error::Service(Box::new(std::io::Error::new(std::io::ErrorKind::TimedOut, text)))
    };
    timeout(limit, request).await.unwrap_or_else(|_| Err(late()))
}

/// Waits until `due`. Without `due`, it never returns.
pub(crate) async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api_server() {
        assert_eq!(ObjectKind::POD.path(None), "/api/v1/pods");
        let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
        assert_eq!(ObjectKind::SLICE.path(Some("shop")), slices);
        assert_eq!(
            (ObjectKind::POD.api_version(), ObjectKind::ROUTE.api_version()),
            ("v1".into(), "http.keda.sh/v1beta1".into())
        );
    }

    #[test]
    fn what_the_api_server_says_is_one_line() {
        let status = kube::core::Status::failure("no\n2026-01-01T00:00:00Z forged\u{1b}[2J", "Forbidden");
        let text = describe(&kube::Error::Api(Box::new(status)));
        assert_eq!(text, "no\\n2026-01-01T00:00:00Z forged\\u{1b}[2J");
    }
}
