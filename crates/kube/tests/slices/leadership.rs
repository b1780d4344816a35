//! One of several controllers writes, and a new leader starts from what there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::rig::{Rig, SLICES, pass, pod, shop};
use rouse_testkit::api_server::ApiServer;

/// A controller, and whether it leads.
fn replica(api: &ApiServer, leads: bool) -> (Rig, Arc<AtomicBool>) {
    let leads = Arc::new(AtomicBool::new(leads));
    let asked = Arc::clone(&leads);
    let rig = Rig::with(api, |settings| settings.may_write = Arc::new(move || asked.load(Ordering::SeqCst)));
    (rig, leads)
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_lead_watches_and_writes_nothing() {
    let api = shop(&[1]);
    let (rig, leads) = replica(&api, false);
    pass(Duration::from_mins(1)).await;
    assert!(rig.writes().is_empty());
    assert_eq!(rig.metric("endpoint_slice_controller_num_endpoint_slices"), Some(0.0));
    assert_eq!(rig.metric("rouse_endpointslice_oldest_unsynced_seconds"), Some(0.0), "that is no backlog");
    leads.store(true, Ordering::SeqCst);
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    rig.settle().await;
    assert_eq!(rig.metric("endpoint_slice_controller_num_endpoint_slices"), Some(1.0));
    leads.store(false, Ordering::SeqCst);
    pass(Duration::from_secs(2)).await;
    let writes = rig.writes().len();
    api.put("pods", pod("cart", 2));
    pass(Duration::from_mins(1)).await;
    assert_eq!(rig.writes().len(), writes);
    assert_eq!(rig.metric("endpoint_slice_controller_num_endpoint_slices"), Some(0.0), "the leader counts");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leadership_is_asked_for_before_every_write() {
    let api = shop(&(1..=40).collect::<Vec<_>>());
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let server = api.clone();
    let rig = Rig::with(&api, |settings| {
        settings.options.max_endpoints_per_slice = "1".parse().unwrap();
        // Leadership is lost when ten slices are written.
        settings.may_write = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            server.all(SLICES).len() < 10
        });
    });
    rig.until("ten slices are written", |rig| rig.slices("cart").len() == 10).await;
    pass(Duration::from_mins(1)).await;
    assert_eq!(rig.slices("cart").len(), 10);
    assert!(asked.load(Ordering::SeqCst) > 10);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_does_not_repeat_what_the_last_one_wrote_although_its_watch_lags_behind() {
    let api = shop(&[1]);
    let (old, old_leads) = replica(&api, true);
    let (new, new_leads) = replica(&api, false);
    old.settle().await;
    new.until("slices are watched by both", |rig| rig.api.watchers(SLICES) == 2).await;
    api.hold_events(SLICES);
    api.put("services", crate::rig::service("till"));
    old.until("the old leader writes", |rig| rig.slices("till").len() == 1).await;
    old_leads.store(false, Ordering::SeqCst);
    new_leads.store(true, Ordering::SeqCst);
    pass(Duration::from_mins(1)).await;
    assert_eq!(new.slices("till").len(), 1);
    api.release_events(SLICES);
    api.put("pods", pod("cart", 2));
    new.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"]).await;
    new.settle().await;
    assert_eq!((new.slices("till").len(), new.slices("cart").len()), (1, 1));
    old.stop().await;
    new.stop().await;
}
