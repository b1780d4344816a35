//! A storm of registrations: thousands of pods register at once with real credentials, from several processes, at one
//! `rouse gateway` under traffic; then a flood of forged registrations, while honest pods renew theirs.
//!
//! `ROUSE_STORM_PODS` (400) pods of 20 services, and `ROUSE_STORM_FORGED` (4000) forged registrations. `make storm` sets
//! them to 10,000 and 100,000. With 10,000 pods or more, another service has 1,005 pods, of which 5 are over the limit.
//!
//! Everything runs in a network namespace of its own, in which 10.64.0.0/10 is local: every pod connects from its own
//! address. Without the right to make one, the test says so and counts as skipped.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "a run prints what it skips or measures")]

mod client;
mod scene;

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use rouse_e2e::runtime::block_on;

/// Set in the network namespace.
const INSIDE: &str = "ROUSE_STORM_INSIDE";
const NAME: &str = "ten_thousand_pods_register_at_once_and_forged_registrations_change_nothing";

fn main() -> ExitCode {
    if std::env::var_os(client::ROLE).is_some() {
        client::main();
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let inside = std::env::var_os(INSIDE).is_some();
    if !inside && !arguments.list && namespace("true").status().is_ok_and(|status| status.success()) {
        let own = std::env::current_exe().unwrap();
        let status = namespace("exec \"$0\" \"$@\"").arg(own).args(std::env::args_os().skip(1)).status();
        return if status.unwrap().success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if !inside && !arguments.list {
        eprintln!("SKIPPED: this user may not make a network namespace");
    }
    let storm = Trial::test(NAME, || Ok(block_on(scene::run())?)).with_ignored_flag(!inside);
    libtest_mimic::run(&arguments, vec![storm]).exit_code()
}

/// A shell in a network namespace of its own.
fn namespace(then: &str) -> Command {
    let setup = "ip link set lo up && ip route add local 10.64.0.0/10 dev lo";
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &format!("{setup} && {then}")]).env(INSIDE, "1");
    command
}

/// A number from the environment.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
