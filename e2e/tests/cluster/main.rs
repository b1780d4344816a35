//! Trials of `rouse gateway` on a real Kubernetes cluster, with real pods and kube-proxy; the gateway is a host process.
//!
//! Not part of the plain test command: `make cluster-test` brings a cluster up and runs it. On an existing cluster:
//!
//! ```text
//! ROUSE_E2E_KUBECONFIG=/tmp/rouse-cluster/kubeconfig cargo test -p rouse-e2e --test cluster [-- PART OF NAMES]
//! ```
//!
//! The cluster needs the images of the test app ([`cluster::image`]) and of the gateway ([`cluster::gateway_image`]), and
//! this machine must reach pods and Services by their addresses. Trials that disturb or inspect the node itself run only on
//! the node of `e2e/cluster`; elsewhere they are reported as ignored.
//!
//! # How to write a trial
//!
//! A trial is an `async fn(Space)`: it has its own namespace, which is removed when the trial ends, also by a panic. Put it
//! into the module of its subject, list it in the module's `TRIALS`, and the module in [`MODULES`].
//!
//! ```ignore
//! pub(crate) const TRIALS: &[Case] = &[trial!(a_request_wakes_the_app), trial!(a_lagging_proxy_costs_nothing).alone()];
//!
//! async fn a_request_wakes_the_app(space: Space) {
//!     let app = App::new("shop").env("START_DELAY_MS", 300);      // a Deployment at zero and its Service
//!     space.run(&app).await;
//!     space.apply(space.route("shop").port_name("http").object()).await;
//!     let gateway = space.launch().await.flag("--probe", true).start(&programs()).await;  // or space.gateway().await
//!     let target = gateway.target(&space.host("shop"));           // for session::get, grpc, websocket, curl, raw
//!     let seen = session::get(&target, "/headers").await.json();  // what the pod saw
//!     let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
//!     assert_eq!(seen["local"], format!("{}:8080", pod.ip));
//!     gateway.stop().await;                                       // SIGTERM, exit code 0
//! }
//! ```
//!
//! - [`test_namespace::TestNamespace`]: apply, get, list, patch, delete, scale; waits for objects; pods, logs, conditions.
//! - [`app::App`], [`route::Route`]: the objects of an app. [`identity`]: the gateway's account and permissions.
//! - `rouse_e2e::gateway`: the gateway, a host process with its own identity that watches this namespace.
//!   `gateway.connections()` returns the remote addresses of its connections.
//! - [`node::Node`]: the cluster's own programs (stop, continue, restart) and the gateway's requests in the audit log.
//!   A trial with [`Case::on_our_node`] runs on that cluster only, one with [`Case::alone`] while no other runs.
//!   One with [`Case::on_its_own_cluster`] has a control plane to itself, without nodes: [`own_cluster`].
//! - [`slice_controller::Controller`]: the controller of `EndpointSlice`s, in the process of the trial.
//! - `rouse_e2e::client::load`: requests at a fixed rate, and a tally of their outcomes.
//! - Wait for a condition with `patiently` and `TestNamespace::until`, never for a fixed time.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![expect(clippy::print_stderr, reason = "a run prints what it skips or measures beside its results")]
#![allow(dead_code, reason = "the harness has what the next trial needs")]

mod answers;
mod app;
mod authority;
mod cluster;
mod cold_start;
mod deployed;
mod direct;
mod dual_stack;
mod from_zero;
mod harness;
mod identity;
mod invalid_objects;
mod keda;
mod keda_operator;
mod node;
mod own_cluster;
mod ownership;
mod ports;
mod protocols;
mod push;
mod push_identity;
mod push_merge;
mod push_sidecar;
mod push_without_api_server;
mod rbac;
mod rollouts;
mod route;
mod route_changes;
mod routing;
mod scaling;
mod scaling_failures;
mod scaling_load;
mod slice_controller;
mod slice_walk;
mod slices;
mod test_namespace;
mod timeouts;
mod tls;
mod watches;

use std::process::ExitCode;

use harness::Case;
use libtest_mimic::Arguments;

/// All trials, by subject.
const MODULES: &[&[Case]] = &[
    from_zero::TRIALS,
    direct::TRIALS,
    ports::TRIALS,
    dual_stack::TRIALS,
    rbac::TRIALS,
    deployed::TRIALS,
    tls::TRIALS,
    cold_start::TRIALS,
    routing::TRIALS,
    answers::TRIALS,
    timeouts::TRIALS,
    protocols::TRIALS,
    route_changes::TRIALS,
    invalid_objects::TRIALS,
    ownership::TRIALS,
    keda::TRIALS,
    keda_operator::TRIALS,
    rollouts::TRIALS,
    scaling_load::TRIALS,
    scaling_failures::TRIALS,
    push_identity::TRIALS,
    push_merge::TRIALS,
    push_sidecar::TRIALS,
    push_without_api_server::TRIALS,
    watches::TRIALS,
    slices::TRIALS,
    slice_walk::TRIALS,
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if let Err(problem) = cluster::named() {
        eprintln!("{problem}");
        return ExitCode::from(2);
    }
    harness::run(&arguments, MODULES).exit_code()
}
