//! Floods by clients that do not read, do not send on, or open too much: memory stays bounded, and other clients are
//! served.
//!
//! Each flood lasts `ROUSE_SIEGE_SECONDS` (4; the recipe `make siege` says 30; the plain test command runs them short) and has `ROUSE_SIEGE_CLIENTS` connections
//! (5). The bars: the gateway stays under 256 MiB at the default limits, no request of another client fails, and `/livez`
//! answers within a second.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may panic, also in its helpers"
)]

mod attackers;
mod floods;
mod watch;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let mut arguments = Arguments::from_args();
    // Each watches the time of the others.
    arguments.test_threads = Some(1);
    let trials = vec![
        trial("downloads_that_stall_over_http2_do_not_exhaust_memory", || {
            Box::pin(floods::downloads_over_http2())
        }),
        trial("downloads_that_stall_over_http2_through_an_h2c_pod_do_not_exhaust_memory", || {
            Box::pin(floods::downloads_from_h2c())
        }),
        trial("downloads_that_stall_over_http1_do_not_exhaust_memory", || {
            Box::pin(floods::downloads_over_http1())
        }),
        trial("uploads_that_no_pod_takes_do_not_exhaust_memory", || Box::pin(floods::uploads())),
        trial("uploads_over_http2_that_no_pod_takes_do_not_exhaust_memory", || {
            Box::pin(floods::uploads_over_http2())
        }),
        trial("connections_to_the_admin_port_that_do_not_read_do_not_stop_its_probes", || {
            Box::pin(floods::admin())
        }),
        trial("four_clients_do_not_use_up_the_descriptors_of_a_fifth", || Box::pin(floods::descriptors())),
        trial("stalled_downloads_do_not_use_up_the_descriptors_of_others", || {
            Box::pin(floods::descriptors_over_http1())
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

type Flood = fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>;

fn trial(name: &str, flood: Flood) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(flood());
        Ok::<(), Failed>(())
    })
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
