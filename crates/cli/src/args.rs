//! Defines the command line: all commands, their arguments and their help texts.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use rouse_config::duration::HumanDuration;
use rouse_core::endpoint::ServiceId;
use rouse_core::slices::MaxEndpoints;
use rouse_daemon::RoleCommand;
use rouse_daemon::admin::MOST_PODS;
use rouse_daemon::up::GUARDIAN;
use rouse_daemon::up::settings::PrintedAddress;
use rouse_daemon::xds::{self, XdsArgs};

use crate::check::{self, CheckArgs};
use crate::inject::{self, InjectArgs};
use crate::install::{self, InstallArgs};
use crate::simulate::{self, SimulateArgs};
use crate::xds_bootstrap::{self, BootstrapArgs};

/// Holds a request until a pod is ready, sends it straight there, and lets a leaving pod finish.
#[derive(Debug, Parser)]
#[command(name = "rouse", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Rouse {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed while running, 2 bad usage or malformed input.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A command that runs until a signal.
    #[command(flatten)]
    Role(RoleCommand),
    /// Serve Envoy on Kubernetes: clusters, endpoints, routes and listeners over xDS, with the gateways where a service has no pod
    #[command(after_long_help = xds::HELP, after_help = "See --help for examples.", args_conflicts_with_subcommands = true)]
    Xds(Xds),
    /// Print the manifests of the gateway, for kubectl apply --server-side -f -
    #[command(after_long_help = install::HELP, after_help = "See --help for examples.")]
    Install(InstallArgs),
    /// Add the sidecar to a workload, so that its pods register themselves (push), and print the changed objects
    #[command(after_long_help = inject::HELP, after_help = "See --help for examples.")]
    Inject(InjectArgs),
    /// Check that a cluster has what `rouse gateway` needs, and print the next steps
    #[command(after_long_help = check::HELP, after_help = "See --help for examples.")]
    Check(CheckArgs),
    /// Show what a running `rouse up` does: services, pods, the last cold starts
    #[command(after_long_help = STATUS_HELP, after_help = "See --help for examples.")]
    Status(Status),
    /// Replace the pods of an app, one after the other, without dropping a request
    #[command(after_long_help = RESTART_HELP, after_help = "See --help for examples.")]
    Restart(Restart),
    /// Pin an app to a number of pods, or return it to the autoscaler
    #[command(after_long_help = SCALE_HELP, after_help = "See --help for examples.")]
    Scale(ScaleArgs),
    /// Show the output of an app's pods
    #[command(after_long_help = LOGS_HELP, after_help = "See --help for examples.")]
    Logs(LogsArgs),
    /// Show how Rouse reads Kubernetes objects, without a cluster
    #[command(after_help = EXIT_CODES)]
    Explain(Explain),
    /// Replay a trace, or a built-in workload, and compare what scaling policies cost
    #[command(after_long_help = simulate::HELP, after_help = "See --help for examples.")]
    Simulate(SimulateArgs),
    /// Between `rouse up` and one pod; only `rouse up` can start it
    #[command(name = GUARDIAN, hide = true)]
    PodGuardian(PodGuardian),
    /// An app of the built-in demo
    #[command(name = DEMO_APP, hide = true)]
    DemoApp(DemoApp),
}

/// `rouse xds`: the role, or a command about it.
#[derive(Debug, Args)]
pub struct Xds {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<XdsCommand>,
    /// The role.
    #[command(flatten)]
    pub role: XdsArgs,
}

/// A command about xDS that does not serve it.
#[derive(Debug, Subcommand)]
pub enum XdsCommand {
    /// Print a configuration with which Envoy gets everything else from Rouse
    #[command(after_long_help = xds_bootstrap::HELP, after_help = "See --help for examples.")]
    Bootstrap(BootstrapArgs),
}

/// The hidden subcommand that is an app of the demo.
pub const DEMO_APP: &str = "demo-app";

/// The address of the admin API.
#[derive(Debug, Clone, Args)]
pub struct Admin {
    /// The admin address of `rouse up`
    #[arg(long, value_name = "ADDRESS", env = "ROUSE_ADMIN", default_value = "127.0.0.1:9080", value_parser = address)]
    pub admin: SocketAddr,
}

/// `rouse status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Where the admin API is.
    #[command(flatten)]
    pub admin: Admin,
    /// The output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: StatusFormat,
}

/// The output format of `status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    /// Tables for people
    #[default]
    Text,
    /// The response of GET /api/v1/services
    Json,
}

/// `rouse restart`.
#[derive(Debug, Args)]
pub struct Restart {
    /// The app's name in rouse.yaml, or local/NAME as status prints it
    #[arg(value_name = "APP", value_parser = app)]
    pub app: String,
    /// Where the admin API is.
    #[command(flatten)]
    pub admin: Admin,
    /// How long to wait until all pods are replaced
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    pub timeout: HumanDuration,
    /// Do not wait
    #[arg(long, conflicts_with = "timeout")]
    pub no_wait: bool,
}

/// `rouse scale`.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// The app's name in rouse.yaml, or local/NAME as status prints it
    #[arg(value_name = "APP", value_parser = app)]
    pub app: String,
    /// How many pods, 0 to 1000, or auto
    #[arg(value_name = "PODS|auto", value_parser = pods)]
    pub pods: Pods,
    /// Where the admin API is.
    #[command(flatten)]
    pub admin: Admin,
}

/// The number of pods of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pods {
    /// The autoscaler decides.
    Auto,
    /// This number, regardless of the load.
    Pinned(u32),
}

/// `rouse logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The app's name in rouse.yaml, or local/NAME as status prints it
    #[arg(value_name = "APP", value_parser = app)]
    pub app: String,
    /// Follow the output
    #[arg(short, long)]
    pub follow: bool,
    /// Where the admin API is.
    #[command(flatten)]
    pub admin: Admin,
}

/// The guardian's arguments: the pod's command.
#[derive(Debug, Args)]
pub struct PodGuardian {
    /// The pod's command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub command: Vec<OsString>,
}

/// An app of the demo.
#[derive(Debug, Args)]
pub struct DemoApp {
    /// Its name in responses.
    pub name: String,
    /// How long it takes to start.
    #[arg(long, default_value = "0s")]
    pub start_after: HumanDuration,
    /// Where it listens.
    #[arg(long, env = "HOST", default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// Where it listens.
    #[arg(long, env = "PORT")]
    pub port: NonZeroU16,
}

/// An address as `rouse up` prints it.
fn address(text: &str) -> Result<SocketAddr, String> {
    PrintedAddress::read(text).ok_or_else(|| format!("expected {}", PrintedAddress::ALLOWED))
}

/// The name of an app, or its service as `rouse status` shows it.
#[expect(clippy::unnecessary_wraps, reason = "what clap calls may fail")]
fn app(text: &str) -> Result<String, String> {
    Ok(text.strip_prefix("local/").unwrap_or(text).to_owned())
}

fn pods(text: &str) -> Result<Pods, String> {
    match text {
        "auto" => Ok(Pods::Auto),
        number => match number.parse() {
            Ok(pods @ 0..=MOST_PODS) => Ok(Pods::Pinned(pods)),
            _ => Err(format!("expected a number from 0 to {MOST_PODS}, or auto")),
        },
    }
}

/// `rouse explain`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Explain {
    /// What to explain.
    #[command(subcommand)]
    pub what: Explained,
}

/// What to explain.
#[derive(Debug, Subcommand)]
pub enum Explained {
    /// Show which endpoints get new requests and why: every address of every service and port, with its state
    #[command(after_long_help = ENDPOINTS_HELP, after_help = "See --help for examples.")]
    Endpoints(ExplainEndpoints),
    /// Show the EndpointSlices that follow from these Pods and Services, by the rules of KEP-1672
    #[command(after_long_help = SLICES_HELP, after_help = "See --help for examples.")]
    Slices(ExplainSlices),
    /// Show how a running controller, or rouse up, scales a service: its policy, the last decision, and what its idle policy has learned
    #[command(after_help = SCALING_HELP)]
    Scaling(ExplainScaling),
}

/// The text at the end of `rouse explain scaling --help`.
const SCALING_HELP: &str = "\
Examples:
  rouse explain scaling shop/cart --admin 10.244.0.12:9090
  rouse explain scaling shop/cart --admin 10.244.0.12:9090 -o json
  rouse explain scaling local/hello

Exit codes: 0 done, 1 there is no answer at that address, 2 bad usage.";

/// `rouse explain scaling`.
#[derive(Debug, Args)]
pub struct ExplainScaling {
    /// The Service, as NAMESPACE/NAME; an app of rouse up as local/NAME
    #[arg(value_name = "SERVICE")]
    pub service: ServiceId,
    /// The admin address of a `rouse controller`, or of `rouse up`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090", value_parser = address)]
    pub admin: SocketAddr,
    /// The output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: ScalingFormat,
}

/// The output format of `explain scaling`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ScalingFormat {
    /// Lines for people
    #[default]
    Text,
    /// What the admin API answers
    Json,
}

/// Where the objects come from.
#[derive(Debug, Args)]
pub struct Input {
    /// File with Kubernetes objects, or - for standard input
    ///
    /// JSON or YAML: one object, several documents, or a List as kubectl prints it. Objects of kinds that are not
    /// needed are skipped, with a warning.
    #[arg(short = 'f', long = "file", value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
}

/// `rouse explain endpoints`.
#[derive(Debug, Args)]
pub struct ExplainEndpoints {
    /// Where the objects come from.
    #[command(flatten)]
    pub input: Input,
    /// The output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: EndpointsFormat,
}

/// The output format of `explain endpoints`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum EndpointsFormat {
    /// Tables for people
    #[default]
    Text,
    /// {"services":[{"service","ports":[{"port","endpoints":[…]}]}]}, in order of first appearance
    Json,
}

/// `rouse explain slices`.
#[derive(Debug, Args)]
pub struct ExplainSlices {
    /// Where the objects come from.
    #[command(flatten)]
    pub input: Input,
    /// The output format [default: yaml; with --diff: text for people]
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    pub output: Option<SlicesFormat>,
    /// Whether terminating pods are listed, with the conditions serving and terminating
    ///
    /// With false, pods that are being deleted are left out, and slices have only `ready` (as Kubernetes did before
    /// EndpointSliceTerminatingCondition).
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub terminating_conditions: bool,
    /// How many endpoints a slice may hold, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub max_endpoints_per_slice: MaxEndpoints,
    /// Show only what differs from the slices of the input that rouse.dev manages: created, updated, deleted
    #[arg(long)]
    pub diff: bool,
}

/// The output format of `explain slices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SlicesFormat {
    /// As kubectl -o yaml
    Yaml,
    /// As kubectl -o json
    Json,
}

const STATUS_HELP: &str = "\
States of a service:
  zero      no pod; the next request starts one
  waking    a pod is being started, or requests wait for one
  serving   at least one pod is ready
  draining  its last pods finish their work

Examples:
  rouse status
  rouse status --admin 127.0.0.1:9000
  rouse status -o json | jq '.[].endpoints[].address'

Exit codes: 0 done, 1 the admin API does not answer, 2 bad usage.";

const RESTART_HELP: &str = "\
A new pod is started and ready before an old one is stopped. An app at zero has nothing to replace.

Examples:
  rouse restart hello
  rouse restart local/hello --timeout 30s
  rouse restart hello --no-wait

Exit codes: 0 all pods are replaced (with --no-wait: it has begun), 1 they are not, or the admin API does \
not answer, 2 bad usage or no such app.";

const SCALE_HELP: &str = "\
A number pins the app, regardless of the load and the file. 0 stops it now; the next request starts it again, and returns \
it to the autoscaler.

Examples:
  rouse scale hello 3
  rouse scale hello 0
  rouse scale hello auto

Exit codes: 0 done, 1 the admin API does not answer, 2 bad usage or no such app.";

const LOGS_HELP: &str = "\
Prints the last lines of all pods of the app, including stopped ones; each begins with its pod's name. 4 MiB are kept for each \
app (logs.keep in rouse.yaml). With -f, a reader that is too slow misses lines, and a line tells how many; the app never waits.

Examples:
  rouse logs hello
  rouse logs hello -f

Exit codes: 0 done, 1 the admin API does not answer, 2 bad usage or no such app.";

const ENDPOINTS_HELP: &str = "\
States:
  Ready     takes new requests
  Draining  finishes its work; takes new requests only while no endpoint of the port is Ready
  Starting  gets no traffic yet
  Gone      gets no traffic any more

Reads EndpointSlices and, if present, Services. Endpoints without a pod are shown as if manual endpoints were allowed.

Examples:
  kubectl get endpointslices,services -A -o json | rouse explain endpoints
  rouse explain endpoints -f examples/rolling-update.yaml
  rouse explain endpoints -f slices.json -o json | jq '.services[].ports[].endpoints[].address'

Exit codes: 0 done, 1 failed while running, 2 bad usage or malformed input.";

const SLICES_HELP: &str = "\
Reads Pods, Services, Nodes and, if present, EndpointSlices. Every Service with a selector, or with the annotation \
rouse.dev/selector: key=value,key2=value2, gets its slices. This is a calculation: nothing is written. In a cluster, \
Kubernetes' own controller writes the slices of Services with a selector, and `rouse controller --endpointslices` those of \
Services with the annotation. Slices of other managers are ignored.

New slices are shown as SERVICE-1, SERVICE-2 and so on, so that the same input always gives the same output; in a \
cluster the API server picks the ending.

Examples:
  kubectl get pods,services,nodes -A -o json | rouse explain slices
  kubectl get pods,services,nodes,endpointslices -A -o json | rouse explain slices --diff
  rouse explain slices -f examples/pods.yaml -o json --max-endpoints-per-slice=2
  rouse explain slices -f examples/pods.yaml --terminating-conditions=false

Exit codes: 0 done, 1 failed while running, 2 bad usage or malformed input.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Rouse::command().debug_assert();
    }

    #[test]
    fn an_app_is_scaled_to_a_number_or_to_auto() {
        let cases =
            [("auto", Some(Pods::Auto)), ("0", Some(Pods::Pinned(0))), ("1000", Some(Pods::Pinned(1000)))];
        for (text, expected) in cases.into_iter().chain(["1001", "-1", "", "max"].map(|bad| (bad, None))) {
            let parsed = Rouse::try_parse_from(["rouse", "scale", "hello", "--", text]).ok();
            let pods = parsed.map(|rouse| match rouse.command {
                Command::Scale(scale) => scale.pods,
                other => unreachable!("{other:?}"),
            });
            assert_eq!(pods, expected, "{text}");
        }
    }

    #[test]
    fn a_pods_command_passes_the_guardian_as_it_is() {
        let words = ["sh", "-c", "exit 3", "--", "--help", "-x"];
        let rouse = Rouse::try_parse_from(["rouse", GUARDIAN].iter().chain(&words)).unwrap();
        let Command::PodGuardian(guardian) = rouse.command else { unreachable!("it is the guardian") };
        assert_eq!(guardian.command, words);
    }

    #[test]
    fn every_command_shows_examples_and_exit_codes() {
        for command in Rouse::command().get_subcommands_mut().filter(|it| !it.is_hide_set()) {
            let name = command.get_name().to_owned();
            let own = command.clone().render_long_help().to_string();
            assert!(own.contains("Exit codes:"), "{name}: {own}");
            let leaves: Vec<_> = match command.get_subcommands().count() {
                0 => vec![command.clone()],
                _ => command.get_subcommands().cloned().collect(),
            };
            for mut leaf in leaves {
                let help = leaf.render_long_help().to_string();
                assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{name}: {help}");
            }
        }
    }
}
