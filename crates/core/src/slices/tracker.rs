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
    /// It may lack a write: try again later. If it stays stale, list all slices again.
    Stale,
    /// It has an older version than before: etcd was restored. List all slices again.
    Regressed,
}

/// Our own writes that the cache does not have yet.
///
/// A version is a number that grows with each write of a slice: its generation or its resourceVersion. The caller reports
/// the lists that fill the cache, [`listing`](Self::listing) before the request and [`relisted`](Self::relisted) after it:
/// a list includes the writes that were answered before it began, and may lack later ones.
#[derive(Debug, Default)]
pub struct Tracker {
    services: BTreeMap<ServiceId, BTreeMap<Arc<str>, Tracked>>,
    /// How many lists have begun.
    lists: u64,
    /// Services with writes whose outcome is not known, each with how many lists had begun then.
    doubted: BTreeMap<ServiceId, u64>,
    /// The same for all services together.
    all_doubted: Option<u64>,
}

#[derive(Debug, Default)]
struct Tracked {
    /// The newest version that the cache has had; 0 before the first.
    seen: u64,
    awaits: Awaits,
    /// How many lists had begun when we wrote.
    lists: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
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
        self.await_write(service, slice, Awaits::Version(version));
    }

    /// We deleted `slice`.
    pub fn deleted(&mut self, service: &ServiceId, slice: &str) {
        self.await_write(service, slice, Awaits::Absence);
    }

    /// We sent a write, and it is not known whether the server has applied it. The cache is stale until a list that begins
    /// from now on is complete.
    pub fn doubt(&mut self, service: &ServiceId) {
        self.doubted.insert(service.clone(), self.lists);
    }

    /// Another process may have written the slices of any service. The cache is stale until a list that begins from now on
    /// is complete.
    pub fn doubt_all(&mut self) {
        self.all_doubted = Some(self.lists);
    }

    /// The watch reports that `slice` was deleted. Returns whether we have deleted it. Without this call, a slice that another
    /// client deletes before the first check would be awaited for ever.
    pub fn vanished(&mut self, service: &ServiceId, slice: &str) -> bool {
        let Some(slices) = self.services.get_mut(service) else { return false };
        let tracked = slices.remove(slice);
        if slices.is_empty() {
            self.services.remove(service);
        }
        tracked.is_some_and(|tracked| tracked.awaits == Awaits::Absence)
    }

    /// The service was deleted, and so were its slices.
    pub fn forget(&mut self, service: &ServiceId) {
        self.services.remove(service);
        self.doubted.remove(service);
    }

    /// A list of all slices begins.
    pub fn listing(&mut self) {
        self.lists += 1;
    }

    /// The cache was filled again by the list that began last.
    pub fn relisted(&mut self) {
        let later = self.lists;
        self.services.retain(|_, slices| {
            // A restore may have set versions back, so none of them counts as seen.
            for tracked in slices.values_mut() {
                tracked.seen = 0;
            }
            slices.retain(|_, tracked| tracked.is_awaited() && tracked.lists == later);
            !slices.is_empty()
        });
        self.doubted.retain(|_, lists| *lists == later);
        self.all_doubted = self.all_doubted.filter(|lists| *lists == later);
    }

    /// Whether `version` of `slice` is our own write, which the cache did not have before.
    pub fn is_own_write(&self, service: &ServiceId, slice: &str, version: u64) -> bool {
        let tracked = self.services.get(service).and_then(|slices| slices.get(slice));
        tracked.is_some_and(|tracked| tracked.awaits == Awaits::Version(version))
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
        let mut awaited = self.all_doubted.is_some() || self.doubted.contains_key(service);
        if let Some(slices) = self.services.get_mut(service) {
            // A slice that is neither in the cache nor awaited was deleted, by us or by another client.
            slices.retain(|slice, tracked| {
                cache.contains_key(&**slice) || matches!(tracked.awaits, Awaits::Version(_))
            });
            awaited |= slices.values().any(Tracked::is_awaited);
        }
        if awaited { Freshness::Stale } else { Freshness::Fresh }
    }

    fn await_write(&mut self, service: &ServiceId, slice: &str, awaits: Awaits) {
        let lists = self.lists;
        let tracked = self.tracked(service, slice);
        (tracked.awaits, tracked.lists) = (awaits, lists);
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

    fn is_awaited(&self) -> bool {
        self.awaits != Awaits::Nothing
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

        fn relist(&mut self) {
            self.0.listing();
            self.0.relisted();
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
        assert!(!cart.0.vanished(&cart.1, "unseen"));
        cart.check(&[], Fresh);
        cart.0.deleted(&cart.1, "ours");
        assert!(cart.0.vanished(&cart.1, "ours"));
    }

    #[test]
    fn a_version_that_goes_back_asks_for_a_relist_until_there_was_one() {
        let mut cart = Cart::new();
        cart.check(&[("a", 7)], Fresh);
        cart.wrote("a", 9);
        cart.check(&[("a", 5)], Regressed);
        cart.check(&[("a", 5)], Regressed);
        cart.relist();
        cart.check(&[("a", 5)], Fresh);
    }

    #[test]
    fn a_write_that_a_restore_undid_is_not_awaited_after_a_relist() {
        let mut cart = Cart::new();
        cart.check(&[("a", 7)], Fresh);
        cart.wrote("a", 8);
        cart.check(&[("a", 7)], Stale);
        cart.relist();
        cart.check(&[("a", 7)], Fresh);
    }

    #[test]
    fn a_list_that_began_before_our_write_may_lack_it() {
        let mut cart = Cart::new();
        cart.check(&[("a", 3)], Fresh);
        cart.wrote("before", 4);
        cart.0.listing();
        cart.wrote("a", 5);
        cart.0.deleted(&cart.1, "b");
        cart.0.relisted();
        cart.check(&[("a", 3), ("b", 2)], Stale);
        cart.check(&[("a", 5), ("b", 2)], Stale);
        cart.check(&[("a", 5)], Fresh);
    }

    #[test]
    fn a_write_of_unknown_outcome_makes_its_service_stale_until_a_later_list() {
        let mut cart = Cart::new();
        let other = ServiceId::new("shop", "other").unwrap();
        cart.0.listing();
        cart.0.doubt(&cart.1);
        cart.0.relisted();
        cart.check(&[("a", 3)], Stale);
        assert_eq!(cart.0.check(&other, []), Fresh);
        cart.relist();
        cart.check(&[("a", 3)], Fresh);
    }

    #[test]
    fn another_writer_makes_every_service_stale_until_a_later_list() {
        let mut cart = Cart::new();
        cart.0.doubt_all();
        cart.check(&[("a", 3)], Stale);
        cart.check(&[], Stale);
        cart.relist();
        cart.check(&[("a", 3)], Fresh);
    }

    #[test]
    fn our_own_write_is_told_from_those_of_others() {
        let mut cart = Cart::new();
        cart.wrote("a", 4);
        let is_own = |cart: &Cart, slice, version| cart.0.is_own_write(&cart.1, slice, version);
        assert!(is_own(&cart, "a", 4));
        assert!(!is_own(&cart, "a", 5) && !is_own(&cart, "a", 3) && !is_own(&cart, "b", 4));
        cart.check(&[("a", 4)], Fresh);
        assert!(!is_own(&cart, "a", 4), "it was seen before");
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
