//! Where the proxy stands on the way of a request.

/// Where the proxy stands on the way of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// In front of pods: the first hop that Rouse knows. It sets `X-Forwarded-*` and `Via`, and believes a pod that refuses
    /// a request.
    #[default]
    Gateway,
    /// Inside one pod, behind a gateway. Forwarding headers stay as they are. Only the sidecar itself refuses requests: the
    /// app cannot do so in its name.
    Sidecar,
}
