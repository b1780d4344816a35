//! Nothing fails while pods and gateways come and go: steady load, no retries on the client, every request counted.
//!
//! Each scene runs for `ROUSE_LOAD_SECONDS` (5; the recipe `make load` says 60). The bar is failed requests, not the
//! rate. A harness of its own, because one scene needs haproxy, and a test that cannot run must say so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may panic, also in its helpers"
)]

mod generator;
mod haproxy;
mod scenes;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let haproxy = haproxy::find();
    if haproxy.is_none() {
        eprintln!(
            "SKIPPED: the scene behind haproxy: there is no haproxy here (Debian: apt-get install haproxy)"
        );
    }
    let trials = vec![
        trial("nothing_fails_while_all_pods_are_replaced", || Box::pin(scenes::rolling())),
        trial("nothing_fails_while_pods_come_and_go", || Box::pin(scenes::up_and_down())),
        trial("nothing_fails_through_zero_and_back", || Box::pin(scenes::zero_and_back())),
        trial("nothing_fails_while_the_configuration_is_reloaded", || Box::pin(scenes::reload())),
        trial("a_killed_pod_costs_at_most_what_was_on_it_and_could_not_be_sent_again", || {
            Box::pin(scenes::kill())
        }),
        trial("nothing_fails_while_one_of_two_gateways_restarts", || Box::pin(scenes::gateway_restarts()))
            .with_ignored_flag(haproxy.is_none()),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

type Scene = fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>;

fn trial(name: &str, scene: Scene) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(scene());
        Ok::<(), Failed>(())
    })
}
