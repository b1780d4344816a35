//! A real Envoy takes its configuration from the real xDS server, and sends requests to pods that the test controls.
//!
//! It has its own harness: without an Envoy on this machine nothing can run, and that is reported.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![expect(clippy::print_stderr, reason = "a run prints what it skips")]

mod client;
mod draining;
mod health;
mod pods;
mod rejected;
mod routes;
mod scene;
mod tls;

/// The messages as Envoy reads them.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod proto {
    include!("../../proto/generated/envoy.config.rs");
}

use std::net::{Ipv6Addr, TcpListener};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use rouse_testkit::envoy::{HOW_TO_INSTALL, binary};
use tokio::time::timeout;

/// Long enough for two slow cores under load.
const PATIENCE: Duration = Duration::from_mins(2);
/// Trials mostly wait for other processes.
const AT_ONCE: usize = 4;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let dual_stack = needs_ipv6(
        "health::the_second_address_of_a_dual_stack_pod_is_dialled_if_the_first_refuses",
        health::dual_stack,
    );
    let all_addresses =
        needs_ipv6("routes::a_listener_on_all_addresses_takes_ipv4_too", routes::all_addresses);
    let trials = vec![
        trial("health::each_row_of_the_vectors_reaches_envoy_and_its_traffic", health::vectors),
        trial("health::gateways_take_the_requests_of_services_that_they_can_wake", health::gateways),
        dual_stack,
        trial("tls::gateways_get_plain_text_and_pods_tls_with_name_and_protocol", tls::both_transports),
        trial("tls::a_pod_with_another_certificate_gets_no_request", tls::wrong_certificates),
        trial("routes::a_request_gets_the_answer_of_its_host_path_and_headers", routes::table),
        trial("routes::a_response_without_a_pod_is_sent_as_it_is", routes::direct_responses),
        all_addresses,
        trial("routes::a_route_with_a_timeout_ends_and_one_without_does_not", routes::timeouts),
        trial("rejected::a_bad_cluster_leaves_the_old_one_in_place", rejected::bad_cluster),
        trial("draining::open_streams_outlive_the_removal_of_their_pod", draining::open_streams),
        trial("draining::the_last_pod_serves_while_it_drains", draining::last_pod),
        trial("draining::a_pod_that_drains_gets_no_new_request", draining::flapping),
    ];
    libtest_mimic::run(&arguments, skip_without_envoy(trials)).exit();
}

fn trial<F: Future<Output = ()> + 'static>(name: &str, scene: fn() -> F) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let limit = PATIENCE + draining::open_for() * draining::STATES;
        runtime.block_on(async { timeout(limit, scene()).await })?;
        Ok(())
    })
}

fn needs_ipv6<F: Future<Output = ()> + 'static>(name: &str, scene: fn() -> F) -> Trial {
    let is_here = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    if !is_here {
        eprintln!("SKIPPED: {name}: this machine has no IPv6");
    }
    trial(name, scene).with_ignored_flag(!is_here)
}

fn skip_without_envoy(trials: Vec<Trial>) -> Vec<Trial> {
    if binary().is_some() {
        return trials;
    }
    for trial in &trials {
        eprintln!("SKIPPED: {}: {HOW_TO_INSTALL}", trial.name());
    }
    trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect()
}
