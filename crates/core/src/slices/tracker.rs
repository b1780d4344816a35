//! Checks that a cache of `EndpointSlice`s includes our own writes before the next reconciliation.
//!
//! A watch lags behind our own writes. Reconciling against older slices would write the same endpoints twice, so a service
//! is skipped until the cache has our writes. This must not wait for ever: if etcd was restored from a backup, our writes
//! may never appear, and versions go back.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::endpoint::ServiceId;

/// How current a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// It has all our writes: reconcile.
    Fresh,
    /// It does not have our last write yet: try again later. If it stays stale, relist.
    Stale,
    /// It has an older version than before: etcd was restored. Relist, then call [`Tracker::relisted`].
    Regressed,
}

/// Our own writes that the cache does not have yet.
///
/// A version is a number that grows with each write of a slice: its generation or its resourceVersion.
#[derive(Debug, Default)]
pub struct Tracker {
    services: BTreeMap<ServiceId, BTreeMap<Arc<str>, Tracked>>,
}

#[derive(Debug, Default)]
struct Tracked {
    /// The newest version that the cache has had; 0 before the first.
    seen: u64,
    awaits: Awaits,
}

#[derive(Debug, Default)]
enum Awaits {
    #[default]
    Nothing,
    /// Our write, which created this version.
    Version(u64),
    /// Our delete.
    Absence,
}

impl Tracker {
    /// We created or updated `slice`, which is now at `version`.
    pub fn wrote(&mut self, service: &ServiceId, slice: &str, version: u64) {
        self.tracked(service, slice).awaits = Awaits::Version(version);
    }

    /// We deleted `slice`.
    pub fn deleted(&mut self, service: &ServiceId, slice: &str) {
        self.tracked(service, slice).awaits = Awaits::Absence;
    }

    /// The watch reports that `slice` was deleted, by us or by another client. Without this call, a slice that another client
    /// deletes before the first check would be awaited for ever.
    pub fn vanished(&mut self, service: &ServiceId, slice: &str) {
        if let Some(slices) = self.services.get_mut(service) {
            slices.remove(slice);
        }
    }

    /// The service was deleted.
    pub fn forget(&mut self, service: &ServiceId) {
        self.services.remove(service);
    }

    /// The cache was filled again by a list request, which is never older than our own writes.
    pub fn relisted(&mut self) {
        self.services.clear();
    }

    /// Checks a cache that has these slices of ours of `service`, each with its version.
    pub fn check<'a>(
        &mut self,
        service: &ServiceId,
        cache: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Freshness {
        let cache: BTreeMap<&str, u64> = cache.into_iter().collect();
        if cache.iter().any(|(slice, version)| self.seen(service, slice) > *version) {
            return Freshness::Regressed;
        }
        for (slice, version) in &cache {
            self.tracked(service, slice).show(*version);
        }
        let Some(slices) = self.services.get_mut(service) else { return Freshness::Fresh };
        // A slice that is neither in the cache nor awaited was deleted, by us or by another client.
        slices.retain(|slice, tracked| {
            cache.contains_key(&**slice) || matches!(tracked.awaits, Awaits::Version(_))
        });
        let awaited = slices.values().any(|tracked| !matches!(tracked.awaits, Awaits::Nothing));
        if awaited { Freshness::Stale } else { Freshness::Fresh }
    }

    fn tracked(&mut self, service: &ServiceId, slice: &str) -> &mut Tracked {
        self.services.entry(service.clone()).or_default().entry(slice.into()).or_default()
    }

    fn seen(&self, service: &ServiceId, slice: &str) -> u64 {
        let tracked = self.services.get(service).and_then(|slices| slices.get(slice));
        tracked.map_or(0, |tracked| tracked.seen)
    }
}

impl Tracked {
    fn show(&mut self, version: u64) {
        self.seen = version;
        if matches!(self.awaits, Awaits::Version(written) if written <= version) {
            self.awaits = Awaits::Nothing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Freshness::{Fresh, Regressed, Stale};
    use super::*;

    /// A tracker of one service.
    struct Cart(Tracker, ServiceId);

    impl Cart {
        fn new() -> Self {
            Self(Tracker::default(), ServiceId::new("shop", "cart").unwrap())
        }

        #[track_caller]
        fn check(&mut self, cache: &[(&str, u64)], expected: Freshness) {
            assert_eq!(self.0.check(&self.1, cache.iter().copied()), expected, "{cache:?}");
        }

        fn wrote(&mut self, slice: &str, version: u64) {
            self.0.wrote(&self.1, slice, version);
        }
    }

    #[test]
    fn a_cache_is_fresh_before_we_write_anything() {
        let mut cart = Cart::new();
        cart.check(&[], Fresh);
        cart.check(&[("a", 3), ("b", 1)], Fresh);
    }

    #[test]
    fn a_cache_is_stale_until_it_shows_our_write() {
        let mut cart = Cart::new();
        cart.check(&[("a", 3)], Fresh);
        cart.wrote("a", 4);
        cart.wrote("new", 1);
        cart.check(&[("a", 3)], Stale);
        cart.check(&[("a", 4)], Stale);
        cart.check(&[("a", 5), ("new", 1)], Fresh);
    }

    #[test]
    fn a_cache_is_stale_until_what_we_deleted_is_gone_from_it() {
        let mut cart = Cart::new();
        cart.check(&[("a", 3)], Fresh);
        cart.0.deleted(&cart.1, "a");
        cart.check(&[("a", 3)], Stale);
        cart.check(&[], Fresh);
        cart.check(&[("a", 1)], Fresh);
    }

    #[test]
    fn a_slice_that_another_client_deleted_is_not_awaited() {
        let mut cart = Cart::new();
        cart.wrote("seen", 1);
        cart.check(&[("seen", 1)], Fresh);
        cart.check(&[], Fresh);
        cart.wrote("unseen", 1);
        cart.check(&[], Stale);
        cart.0.vanished(&cart.1, "unseen");
        cart.check(&[], Fresh);
    }

    #[test]
    fn a_version_that_goes_back_asks_for_a_relist_until_there_was_one() {
        let mut cart = Cart::new();
        cart.check(&[("a", 7)], Fresh);
        cart.wrote("a", 9);
        cart.check(&[("a", 5)], Regressed);
        cart.check(&[("a", 5)], Regressed);
        cart.0.relisted();
        cart.check(&[("a", 5)], Fresh);
    }

    #[test]
    fn a_write_that_a_restore_undid_is_not_awaited_after_a_relist() {
        let mut cart = Cart::new();
        cart.check(&[("a", 7)], Fresh);
        cart.wrote("a", 8);
        cart.check(&[("a", 7)], Stale);
        cart.0.relisted();
        cart.check(&[("a", 7)], Fresh);
    }

    #[test]
    fn services_do_not_wait_for_each_other() {
        let mut cart = Cart::new();
        let other = ServiceId::new("shop", "other").unwrap();
        cart.0.wrote(&other, "o", 1);
        cart.check(&[], Fresh);
        assert_eq!(cart.0.check(&other, []), Stale);
        cart.0.forget(&other);
        assert_eq!(cart.0.check(&other, []), Fresh);
    }
}
