//! `rouse up` and its commands from the user's side: output, errors, reloads, shutdown, and processes left behind.
//!
//! It has its own harness, because some trials need programs that may be missing, and a trial that cannot run must
//! report that.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![expect(clippy::print_stderr, reason = "a run prints what it skips or measures beside its results")]

mod apps;
mod commands;
mod config_reload;
mod failing_apps;
mod fixture;
mod idle;
mod mistakes;
mod orphans;
mod port_conflicts;
mod quickstart;
mod screen;
mod shutdown;
mod suspended_process;
mod tracing;

use std::collections::BTreeSet;
use std::pin::Pin;

use libtest_mimic::{Arguments, Trial};
use rouse_e2e::runtime::block_on;

/// Trials mostly wait for other processes, so more than one per core.
const AT_ONCE: usize = 8;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let mut missing = BTreeSet::new();
    let trials = TRIALS.iter().map(|trial| trial.prepare(&mut missing)).collect();
    for line in missing {
        eprintln!("{line}");
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// A program that a trial needs, and the Debian package that has it.
type Program = (&'static str, &'static str);

const CURL: Program = ("curl", "curl");
const NODE: Program = ("node", "nodejs");
const PYTHON: Program = ("python3", "python3");
const SCRIPT: Program = ("script", "bsdutils");
const SETSID: Program = ("setsid", "util-linux");
const SH: Program = ("sh", "dash");
/// Not a package: `make opentelemetry` installs it.
const OPENTELEMETRY: Program = ("opentelemetry-sdk for Python", "");

struct Case {
    name: &'static str,
    needs: &'static [Program],
    run: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

impl Case {
    fn prepare(&self, missing: &mut BTreeSet<String>) -> Trial {
        let absent: Vec<&Program> = self.needs.iter().filter(|(program, _)| !is_here(program)).collect();
        missing.extend(absent.iter().map(|(program, package)| {
            let install = match *package {
                "" => "make opentelemetry".to_owned(),
                package => format!("Debian: apt-get install {package}"),
            };
            format!("SKIPPED: {}: there is no {program} here ({install})", self.name)
        }));
        let run = self.run;
        Trial::test(self.name, move || Ok(block_on(run())?)).with_ignored_flag(!absent.is_empty())
    }
}

fn is_here(program: &str) -> bool {
    if program == OPENTELEMETRY.0 {
        return tracing::python().is_some();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The trials: `module: [programs] name, …`. A trial is called like its function.
macro_rules! trials {
    ($($module:ident: $([$($need:ident),*] $name:ident),+;)+) => {
        &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            needs: &[$($need),*],
            run: || Box::pin($module::$name()),
        },)+)+]
    };
}

const TRIALS: &[Case] = trials! {
    quickstart:
        [SH, CURL] without_a_file_the_demo_runs_and_the_commands_that_it_prints_work,
        [] status_shows_each_step_from_zero_to_serving_and_back;
    apps:
        [PYTHON] a_python_server_serves_the_files_of_its_folder_beside_the_file,
        [NODE] a_node_server_runs_as_it_is,
        [SH] a_command_may_be_one_string_and_the_environment_knows_port_host_and_name,
        [] pods_with_a_fixed_port_have_an_address_each_and_share_the_requests;
    tracing:
        [OPENTELEMETRY] an_app_records_its_traces_exactly_as_without_us;
    failing_apps:
        [SH] a_script_that_never_gets_ready_is_explained_with_its_own_words,
        [SH] an_app_that_listens_elsewhere_is_told_where_and_what_to_do,
        [] a_command_that_does_not_exist_is_explained_while_others_serve,
        [] an_app_that_cannot_start_is_answered_at_once_and_serves_when_the_file_is_corrected,
        [SH] an_app_that_ends_at_once_is_answered_at_its_third_end_and_not_started_again,
        [SH] an_app_that_takes_long_to_start_is_waited_for,
        [] who_asks_for_a_public_name_is_not_told_paths,
        [SH] an_app_that_keeps_crashing_is_started_ever_more_slowly_until_it_recovers;
    mistakes:
        [] all_mistakes_are_told_at_once_with_line_and_column,
        [] what_is_no_yaml_is_told_with_line_and_column,
        [] a_file_that_was_asked_for_and_is_not_there_is_no_demo,
        [] a_bad_change_is_told_and_the_old_configuration_keeps_serving;
    port_conflicts:
        [] a_busy_port_is_an_error_that_names_its_process_and_the_next_step,
        [] a_second_rouse_up_on_the_same_address_is_refused_and_the_first_serves_on;
    commands:
        [SH] logs_are_those_of_the_app_and_can_be_followed,
        [SH] a_burst_of_output_is_shown_and_kept_and_followed_whole,
        [SH] a_viewer_that_does_not_read_holds_up_no_app_and_is_told_what_it_missed,
        [SH] a_folder_for_logs_gets_every_line_of_every_app,
        [] scale_pins_and_auto_lets_go_to_zero,
        [] restart_replaces_each_pod_and_says_so,
        [] without_a_rouse_up_commands_say_what_to_do,
        [] an_unknown_app_is_bad_usage_and_the_known_ones_are_named;
    config_reload:
        [] an_app_that_is_added_serves_and_one_that_is_removed_ends,
        [] an_app_that_is_removed_finishes_its_requests_first,
        [] another_scale_restarts_nothing,
        [] another_environment_replaces_the_pods,
        [] sighup_reads_the_file_again;
    shutdown:
        [] sigterm_lets_a_request_finish_first,
        [] ctrl_c_waits_three_seconds_for_a_websocket_and_says_so,
        [] two_signals_at_once_are_one,
        [] a_second_sigterm_ends_at_once_and_leaves_nothing,
        [] a_second_sigterm_does_not_wait_for_pods_that_do_not_end,
        [] a_websocket_whose_pod_was_killed_does_not_delay_the_shutdown;
    screen:
        [SH] piped_output_is_plain_and_says_where_it_listens_before_a_pod_says_anything,
        [] nothing_is_printed_before_where_it_listens,
        [SH, SCRIPT] a_terminal_gets_colours;
    idle:
        [] an_open_event_stream_keeps_an_app_from_zero,
        [] an_open_websocket_keeps_an_app_from_zero,
        [] a_websocket_that_its_pod_has_ended_keeps_nothing_awake,
        [] a_websocket_whose_pod_was_killed_keeps_nothing_awake,
        [] a_caller_every_90_seconds_meets_a_warm_pod_although_idle_after_is_20_seconds;
    suspended_process:
        [] a_request_that_came_meanwhile_is_answered_although_its_connection_has_been_idle_for_too_long,
        [] a_request_that_came_before_the_signal_to_stop_is_answered;
    orphans:
        [SH, SETSID] nothing_is_left_after_a_sigkill,
        [SH, SETSID] nothing_is_left_after_a_sigkill_in_the_middle_of_leaving,
        [SH, SETSID] nothing_is_left_after_a_sigterm,
        [SH, SETSID] nothing_is_left_of_an_app_that_crashed,
        [SH, SETSID] nothing_is_left_of_a_pod_whose_guardian_was_killed,
        [SH, SETSID] nothing_is_left_of_an_app_that_was_removed_from_the_file,
        [SH] nothing_is_left_of_a_start_that_failed;
};
