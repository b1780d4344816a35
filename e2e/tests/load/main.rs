//! No request fails while pods and gateways come and go, under steady load without client retries.
//!
//! Each scenario runs for `ROUSE_LOAD_SECONDS` (5; `make load` sets 60). It fails on failed requests, not on a low
//! rate. It has its own harness, because one scenario needs haproxy, and a test that cannot run must report that.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![expect(clippy::print_stderr, reason = "a run prints what it skips or measures beside its results")]

mod envoy;
mod generator;
mod haproxy;
mod scenarios;

use libtest_mimic::{Arguments, Trial};
use rouse_e2e::runtime::block_on;

fn main() {
    let arguments = Arguments::from_args();
    let haproxy = haproxy::find();
    if haproxy.is_none() {
        eprintln!(
            "SKIPPED: the scenario behind haproxy: haproxy is not installed (Debian: apt-get install haproxy)"
        );
    }
    let has_envoy = rouse_testkit::envoy::binary().is_some();
    if !has_envoy {
        eprintln!("SKIPPED: the scenarios through Envoy: {}", rouse_testkit::envoy::HOW_TO_INSTALL);
    }
    let trials = vec![
        trial("nothing_fails_while_all_pods_are_replaced", scenarios::rolling),
        trial("nothing_fails_while_pods_come_and_go", scenarios::up_and_down),
        trial("nothing_fails_through_zero_and_back", scenarios::zero_and_back),
        trial("nothing_fails_while_the_configuration_is_reloaded", scenarios::reload),
        trial("a_killed_pod_costs_at_most_what_was_on_it_and_could_not_be_sent_again", scenarios::kill),
        trial("nothing_fails_while_one_of_two_gateways_restarts", scenarios::gateway_restarts)
            .with_ignored_flag(haproxy.is_none()),
        trial("nothing_fails_through_envoy_while_all_pods_are_replaced", scenarios::rolling_behind_envoy)
            .with_ignored_flag(!has_envoy),
        trial("nothing_fails_through_envoy_while_pods_come_and_go", scenarios::up_and_down_behind_envoy)
            .with_ignored_flag(!has_envoy),
        trial("nothing_fails_through_envoy_through_zero_and_back", scenarios::zero_and_back_behind_envoy)
            .with_ignored_flag(!has_envoy),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial<F: Future<Output = ()> + 'static>(name: &str, scene: fn() -> F) -> Trial {
    Trial::test(name, move || Ok(block_on(scene())?))
}
