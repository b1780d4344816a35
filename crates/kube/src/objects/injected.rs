//! What `rouse inject` adds to objects, and by which others find it.

/// The annotation of an object that has been changed.
pub const INJECTED_ANNOTATION: &str = "rouse.dev/injected";
/// The name of the sidecar's container.
pub const SIDECAR_CONTAINER: &str = "rouse-sidecar";
/// The name of the sidecar's port for requests.
pub const SIDECAR_PORT: &str = "rouse-http";
/// The name of the volume with the token and the CA.
pub const REGISTER_VOLUME: &str = "rouse-register";
/// The key of the CA in its `ConfigMap`.
pub const CA_KEY: &str = "ca.crt";
