//! The command line: what can be asked of `rouse`.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use rouse_core::slices::MaxEndpoints;

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
    /// Show what Rouse makes of Kubernetes objects, without a cluster
    Explain(Explain),
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
    /// Show who gets new requests and why: every address of every service and port, with its state
    #[command(after_long_help = ENDPOINTS_HELP, after_help = "See --help for examples.")]
    Endpoints(ExplainEndpoints),
    /// Show the EndpointSlices that the controller would write for these Pods and Services
    #[command(after_long_help = SLICES_HELP, after_help = "See --help for examples.")]
    Slices(ExplainSlices),
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
    /// How to print the answer
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: EndpointsFormat,
}

/// How `explain endpoints` prints.
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
    /// How to print the answer [default: yaml; with --diff: text for people]
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    pub output: Option<SlicesFormat>,
    /// Whether terminating pods are listed, with the conditions serving and terminating
    ///
    /// With false, pods that are being deleted are left out, and slices say only `ready` (as Kubernetes did before
    /// EndpointSliceTerminatingCondition).
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub terminating_conditions: bool,
    /// How many endpoints a slice may hold, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub max_endpoints_per_slice: MaxEndpoints,
    /// Show only what the controller would create, update and delete
    #[arg(long)]
    pub diff: bool,
}

/// How `explain slices` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SlicesFormat {
    /// As kubectl -o yaml
    Yaml,
    /// As kubectl -o json
    Json,
}

const ENDPOINTS_HELP: &str = "\
States:
  Ready     takes new requests
  Draining  finishes its work; takes new requests only while no endpoint of the port is Ready
  Starting  gets no traffic yet
  Gone      gets no traffic any more

Reads EndpointSlices and, if present, Services. Endpoints without a pod behind them are shown as if you had allowed \
hand-made endpoints.

Examples:
  kubectl get endpointslices,services -A -o json | rouse explain endpoints
  rouse explain endpoints -f examples/rolling-update.yaml
  rouse explain endpoints -f slices.json -o json | jq '.services[].ports[].endpoints[].address'

Exit codes: 0 done, 1 failed while running, 2 bad usage or malformed input.";

const SLICES_HELP: &str = "\
Reads Pods, Services, Nodes and, if present, EndpointSlices. Every Service with a selector, or with the annotation \
rouse.dev/selector: key=value,key2=value2, gets its slices. (In a cluster the controller leaves Services with a \
selector to Kubernetes' own controller, and never touches slices that somebody else manages.)

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
}
