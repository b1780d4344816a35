//! Publishes the load of each route on the board that answers KEDA: each change at once, and each second what changes with time.

use std::sync::Arc;
use std::time::Duration;

use rouse_grpc::scaler::{RouteLoad, RouteLoadStore, ScaledRoute, ScaledRouteKind};
use rouse_kube::autoscale::{AutoscaleController, ScaledRouteLoad};
use rouse_kube::objects::route::{RouteKey, RouteKind};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

const SECOND: Duration = Duration::from_secs(1);

/// Publishes for ever. `serving` tells whether the load of all routes is known.
pub(super) async fn publish(
    autoscaler: Arc<AutoscaleController>,
    board: RouteLoadStore,
    serving: watch::Sender<bool>,
) {
    let mut seconds = interval(SECOND);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = autoscaler.route_loads_changed() => {}
            _ = seconds.tick() => autoscaler.pass_time_of_route_loads(),
        }
        for (key, load) in autoscaler.new_route_loads() {
            let route = scaled_route(&key);
            match load {
                Some(load) => board.publish(&route, route_load(&load)),
                None => board.remove(&route),
            }
        }
        // After the load: an answer must not be of an empty board.
        let knows = autoscaler.knows_load();
        serving.send_if_modified(|serving| std::mem::replace(serving, knows) != knows);
    }
}

fn scaled_route(key: &RouteKey) -> ScaledRoute {
    let kind = match key.kind {
        RouteKind::InterceptorRoute => ScaledRouteKind::InterceptorRoute,
        RouteKind::HttpScaledObject => ScaledRouteKind::HttpScaledObject,
    };
    ScaledRoute { kind, namespace: key.namespace.to_string(), name: key.name.to_string() }
}

fn route_load(load: &ScaledRouteLoad) -> RouteLoad {
    let (present, rate) = (load.present, load.rate);
    RouteLoad {
        active: present.total() > 0 || rate > 0.0 || load.kept_active,
        held: present.holds.into(),
        concurrency: present.total(),
        rate,
        concurrency_target: load.concurrency_target.map(f64::from),
        rate_target: load.rate_target.map(f64::from),
    }
}

#[cfg(test)]
mod tests {
    use rouse_core::scale::CurrentLoad;

    use super::*;

    fn load(present: CurrentLoad, rate: f64) -> RouteLoad {
        let kept_active = false;
        route_load(&ScaledRouteLoad {
            present,
            rate,
            kept_active,
            concurrency_target: Some(100),
            rate_target: None,
        })
    }

    #[test]
    fn a_route_is_active_while_requests_are_present_or_were_within_its_window() {
        assert!(!load(CurrentLoad::default(), 0.0).is_active());
        assert!(load(CurrentLoad::default(), 0.02).is_active(), "a request that is over still counts");
        let held = load(CurrentLoad { holds: 2, in_flight: 3, ..CurrentLoad::default() }, 0.0);
        assert!(held.is_active());
        assert_eq!((held.held, held.concurrency), (2, 5));
        assert_eq!((held.concurrency_target, held.rate_target), (Some(100.0), None));
    }
}
