//! The subscription to changes of all services.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeSet;

use rouse_core::endpoint::ServiceId;
use rouse_testkit::fakes::{Bench, ready_slice};

fn id(name: &str) -> ServiceId {
    ServiceId::new("shop", name).unwrap()
}

fn ids(names: &[&str]) -> BTreeSet<ServiceId> {
    names.iter().map(|name| id(name)).collect()
}

#[test]
fn a_reader_is_told_once_of_each_service_that_has_a_new_snapshot_or_is_removed() {
    let Bench { registry, .. } = Bench::new();
    registry.service(&id("cart")).put_slice("one", ready_slice(1));
    registry.service(&id("quiet"));
    let (mut first, mut second) = (registry.subscribe(), registry.subscribe());
    assert_eq!(first.take(), ids(&["cart", "quiet"]), "all services there are");
    assert_eq!(first.take(), ids(&[]));

    registry.service(&id("cart")).put_slice("one", ready_slice(2));
    registry.service(&id("cart")).put_slice("one", ready_slice(1));
    registry.service(&id("new")).put_slice("one", ready_slice(2));
    assert_eq!(first.take(), ids(&["cart", "new"]), "each once");
    // The same again is no change.
    registry.service(&id("new")).put_slice("one", ready_slice(2));
    assert_eq!(first.take(), ids(&[]));
    registry.remove(&id("new"));
    assert_eq!(first.take(), ids(&["new"]));
    assert_eq!(second.take(), ids(&["cart", "quiet", "new"]), "readers do not take from each other");
}

#[tokio::test]
async fn a_reader_that_waits_is_woken_by_a_change() {
    let Bench { registry, .. } = Bench::new();
    let mut reader = registry.subscribe();
    let cart = registry.service(&id("cart"));
    let (changed, ()) = tokio::join!(reader.changed(), async {
        tokio::task::yield_now().await;
        cart.put_slice("one", ready_slice(2));
    });
    assert_eq!(changed, ids(&["cart"]));
}
