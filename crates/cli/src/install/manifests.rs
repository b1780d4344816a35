//! The manifests of `deploy/`, embedded at build time.

use serde_json::Value;

use crate::CommandError;
use rouse_config::document::yaml::Reader;
use rouse_config::document::{DocumentError, from_node};

pub(super) const NAMESPACE: &str = include_str!("../../../../deploy/manifests/00-namespace.yaml");
/// The CRDs of routes.
pub(super) const CRDS: [&str; 2] = [
    include_str!("../../../../deploy/crds/interceptorroutes.yaml"),
    include_str!("../../../../deploy/crds/httpscaledobjects.yaml"),
];
/// The gateway, in the order in which the objects are applied.
pub(super) const GATEWAY: [&str; 3] = [
    include_str!("../../../../deploy/manifests/10-rbac.yaml"),
    include_str!("../../../../deploy/manifests/20-gateway.yaml"),
    include_str!("../../../../deploy/manifests/30-services.yaml"),
];
/// The controller, in the order in which the objects are applied.
pub(super) const CONTROLLER: [&str; 2] = [
    include_str!("../../../../deploy/manifests/40-controller-rbac.yaml"),
    include_str!("../../../../deploy/manifests/50-controller.yaml"),
];

/// `rouse xds`, which is installed with `--xds` only, in the order in which the objects are applied.
pub(super) const XDS: &str = include_str!("../../../../deploy/xds/xds.yaml");

/// The objects of one file.
pub(super) fn read(text: &str) -> Result<Vec<Value>, CommandError> {
    let broken = |fault: DocumentError| {
        CommandError::Failed(format!("the manifests in this binary are broken, please report this: {fault}"))
    };
    let mut reader = Reader::new(text, 1);
    let mut objects = Vec::new();
    while reader.next_document().map_err(broken)? {
        let node = reader.node().map_err(broken)?;
        objects.push(from_node(node).map_err(broken)?);
    }
    Ok(objects)
}
