//! The controller's requests to the API server match the permission table that manifests grant.

use std::collections::BTreeSet;

use http::Method;
use rouse_kube::client::permissions::SLICE_PERMISSIONS;

use crate::rig::{Rig, pod, shop, unready};

#[tokio::test(start_paused = true)]
async fn its_requests_are_those_of_the_permission_table() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    api.put("pods", unready(pod("cart", 1), "2025-03-01T00:00:00Z"));
    rig.settle().await;
    api.delete("services", "shop", "cart");
    rig.settle().await;
    rig.stop().await;
    let used = api.requests(|_| true).into_iter().map(|request| {
        let plural = request
            .path
            .split('/')
            .find(|part| ["services", "pods", "nodes", "endpointslices"].contains(part));
        let verb = match request.method {
            Method::GET if request.query.contains("watch=") => "watch",
            Method::GET => "list",
            Method::PATCH => "patch",
            Method::POST => "create",
            Method::DELETE => "delete",
            other => panic!("{other} {}", request.path),
        };
        (plural.unwrap().to_owned(), verb)
    });
    let used: BTreeSet<(String, &str)> = used.collect();
    // The permission for finalizers is that of the owner references which the slices have, not of a request.
    let granted = SLICE_PERMISSIONS.iter().filter(|permission| permission.parts().1.is_none());
    let granted = granted
        .flat_map(|permission| permission.verbs.iter().map(|verb| (permission.resource.to_owned(), *verb)));
    assert_eq!(used, granted.collect());
}
