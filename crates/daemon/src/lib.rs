//! The long-running commands [`gateway`], [`controller`], [`sidecar`], [`up`] and [`xds`], and what they share: lifecycle, settings, log, signals, drain,
//! certificates, listeners and admin API.

pub mod admin;
mod certificates;
mod cluster_events;
pub mod controller;
mod data_plane;
pub mod envoy;
mod failure;
pub mod gateway;
pub mod listeners;
pub mod logging;
pub mod process;
mod role;
pub mod rouse_yaml;
pub mod settings;
pub mod sidecar;
mod token_check;
pub mod up;
pub mod xds;
pub mod xds_listener;

pub use failure::CommandError;

use std::io::Write;

use clap::Subcommand;

/// The long-running commands: one role each.
#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// Run everything on this machine: apps from rouse.yaml that start when a request comes
    #[command(after_long_help = up::args::HELP, after_help = "See --help for examples.")]
    Up(up::UpArgs),
    /// Run the data plane on Kubernetes: hold requests until a pod is ready, in place of KEDA HTTP add-on's interceptor
    #[command(after_long_help = gateway::HELP, after_help = "See --help for examples.")]
    Gateway(gateway::GatewayArgs),
    /// Scale the workloads of routes by their load on Kubernetes: up, down and to zero; and answer KEDA as its external scaler
    #[command(after_long_help = controller::HELP, after_help = "See --help for examples.")]
    Controller(controller::ControllerArgs),
    /// Run beside an app in its pod: tell gateways when it is ready, limit its requests, and drain it
    #[command(after_long_help = sidecar::HELP, after_help = "See --help for examples.")]
    Sidecar(sidecar::SidecarArgs),
}

impl RoleCommand {
    /// Runs until a signal or a failure. The output of --check-config goes to `out` and `err`.
    pub fn run(&self, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            RoleCommand::Up(args) => up::command(args),
            RoleCommand::Gateway(args) => gateway::command(args, out, err),
            RoleCommand::Controller(args) => controller::command(args, out, err),
            RoleCommand::Sidecar(args) => sidecar::command(args, out, err),
        }
    }
}
