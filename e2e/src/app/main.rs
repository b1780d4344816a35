//! The test app that runs as a pod: HTTP, gRPC, WebSocket and TLS, with behaviour set by paths and environment variables.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "an app under test prints, waits and dies as it is told"
)]

mod grpc;
mod routes;
mod serve;
mod settings;
mod state;
mod streams;
mod tls;
mod upgrade;

use std::process::ExitCode;
use std::sync::Arc;

use settings::Settings;
use state::State;

fn main() -> ExitCode {
    let settings = match Settings::from_env(|name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(problem) => {
            eprintln!("rouse-test-app: {problem}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("rouse-test-app: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve::run(Arc::new(State::new(settings)))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rouse-test-app: {error}");
            ExitCode::FAILURE
        }
    }
}
