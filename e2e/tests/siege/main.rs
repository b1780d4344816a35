//! Floods by clients that do not read, do not send on, or open too much: memory stays bounded, and other clients are
//! served.
//!
//! Each flood lasts `ROUSE_SIEGE_SECONDS` (4) and has `ROUSE_SIEGE_CLIENTS` attackers (5), or a multiple of that. It passes
//! if the gateway stays under 256 MiB at the default limits, no request of another client fails, and `/livez` answers within
//! `ROUSE_SIEGE_LIVEZ_SECONDS` (5, for machines that are busy). `make siege` sets them to 30 s, 5 attackers and 1 s.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![expect(clippy::print_stderr, reason = "a run prints what it skips or measures beside its results")]

mod attackers;
mod floods;
mod monitor;

use libtest_mimic::{Arguments, Trial};
use rouse_e2e::runtime::block_on;

fn main() {
    let mut arguments = Arguments::from_args();
    // One at a time: each measures latency, which another flood would spoil.
    arguments.test_threads = Some(1);
    let mut trials: Vec<Trial> =
        floods::FLOODS.iter().map(|flood| trial(flood.name, move || floods::run(flood))).collect();
    trials
        .push(trial("connections_to_the_admin_port_that_do_not_read_do_not_stop_its_probes", floods::admin));
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial<F: Future<Output = ()>>(name: &str, flood: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, move || Ok(block_on(flood())?))
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
