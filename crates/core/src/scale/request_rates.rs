//! The request rates of routes, for an autoscaler elsewhere: KEDA asks for the rate of each route.
//!
//! Only routes with requests within their window are kept: an idle route costs nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::policy::Milli;
use super::report::LoadReport;
use super::window::Window;
use crate::time::Moment;

/// The request rates of the routes `K` that have had requests lately.
#[derive(Debug, Clone)]
pub struct RequestRates<K> {
    windows: HashMap<K, RateWindow>,
}

#[derive(Debug, Clone)]
struct RateWindow {
    length: Duration,
    window: Window,
}

impl<K> Default for RequestRates<K> {
    fn default() -> Self {
        Self { windows: HashMap::new() }
    }
}

impl<K: Hash + Eq + Clone> RequestRates<K> {
    /// Records what a reporter says of a route at `now`. `length` is the window of the route's rate, in whole seconds.
    pub fn record(&mut self, now: Moment, key: &K, length: Duration, report: &LoadReport) {
        let known = self.windows.get_mut(key).filter(|known| known.length == length);
        if let Some(RateWindow { window, .. }) = known {
            window.record(now, report.span, Milli::whole(0), report.requests());
        } else if report.requests() > 0 {
            let mut window = match self.windows.remove(key) {
                Some(known) => known.window.resized(length),
                None => Window::new(length),
            };
            window.record(now, report.span, Milli::whole(0), report.requests());
            self.windows.insert(key.clone(), RateWindow { length, window });
        }
    }

    /// The requests per second of a route, over its window up to `now`.
    pub fn rate(&mut self, now: Moment, key: &K) -> f64 {
        let Some(RateWindow { length, window }) = self.windows.get_mut(key) else { return 0.0 };
        window.record(now, Duration::ZERO, Milli::whole(0), 0);
        if window.has_load() { window.over(*length).per_second() } else { 0.0 }
    }

    /// The routes whose rate changes with time alone. Forgets those without requests within their window, after they were
    /// returned once more, with a rate of zero.
    pub fn changing(&mut self, now: Moment) -> Vec<K> {
        let keys = self.windows.keys().cloned().collect();
        self.windows.retain(|_, RateWindow { window, .. }| {
            window.record(now, Duration::ZERO, Milli::whole(0), 0);
            window.has_load()
        });
        keys
    }

    /// Forgets a route.
    pub fn remove(&mut self, key: &K) {
        self.windows.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::CurrentLoad;

    const MINUTE: Duration = Duration::from_mins(1);

    fn at(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    fn requests(count: u64) -> LoadReport {
        LoadReport {
            span: Duration::from_secs(1),
            requests: count,
            present: CurrentLoad::default(),
            ..LoadReport::default()
        }
    }

    #[test]
    fn the_rate_is_that_of_the_window_and_falls_to_zero_after_it() {
        let mut rates = RequestRates::default();
        for second in 100..160 {
            rates.record(at(second + 1), &"cart", MINUTE, &requests(30));
        }
        assert!((rates.rate(at(160), &"cart") - 30.0).abs() < 0.001);
        let later = rates.rate(at(190), &"cart");
        assert!((14.0..16.0).contains(&later), "half of the window had requests: {later}");
        assert_eq!(rates.changing(at(190)), ["cart"]);
        assert_eq!(rates.changing(at(300)), ["cart"], "its rate has become zero");
        assert!(rates.rate(at(300), &"cart").abs() < f64::EPSILON);
        assert!(rates.changing(at(301)).is_empty(), "an idle route costs nothing");
    }

    #[test]
    fn reports_of_several_gateways_add_up_and_a_window_may_change() {
        let mut rates = RequestRates::default();
        for second in 100..130 {
            rates.record(at(second + 1), &"cart", MINUTE, &requests(10));
            rates.record(at(second + 1), &"cart", MINUTE, &requests(5));
        }
        assert!(
            (rates.rate(at(130), &"cart") - 15.0).abs() < 0.001,
            "the window began with the first request"
        );
        rates.record(at(131), &"cart", MINUTE / 2, &requests(15));
        assert!((rates.rate(at(131), &"cart") - 15.0).abs() < 0.001);
        rates.remove(&"cart");
        assert!(rates.rate(at(131), &"cart").abs() < f64::EPSILON);
    }

    #[test]
    fn a_route_without_requests_is_not_kept() {
        let mut rates = RequestRates::default();
        rates.record(at(10), &"cart", MINUTE, &requests(0));
        assert!(rates.changing(at(10)).is_empty());
    }
}
