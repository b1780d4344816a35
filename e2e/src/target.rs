//! The target of a check: the app itself, or a gateway in front of it whose app is cold or warm.

use std::net::SocketAddr;

use crate::Programs;
use crate::admin::Admin;
use crate::client::session;
use crate::config::{App, Config};
use crate::pod::Pod;
use crate::rouse::Rouse;
use crate::wait::eventually;

/// The target of a check.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where to connect.
    pub address: SocketAddr,
    /// The `Host` to send.
    pub host: String,
    /// The gateway, if the check goes through one.
    pub gateway: Option<Gateway>,
}

/// The gateway that a check goes through.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Its process.
    pub pid: u32,
    /// Its admin API.
    pub admin: Admin,
    /// Whether the app is at zero when the first request arrives.
    pub cold: bool,
    /// Whether the pods of the app have a sidecar.
    pub sidecar: bool,
}

/// How a check reaches the app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Without a gateway: shows that the check itself is right.
    Straight,
    /// Through a gateway, and nothing runs yet.
    Cold,
    /// Through a gateway, and a pod is ready.
    Warm,
    /// The same, and the pod has a sidecar.
    Sidecar,
}

impl Target {
    /// The app itself.
    pub fn straight(address: SocketAddr, app: &App) -> Self {
        Self { address, host: app.host(), gateway: None }
    }

    /// An address that is its own host.
    pub fn plain(address: SocketAddr) -> Self {
        Self { address, host: address.to_string(), gateway: None }
    }

    /// The same address with another host.
    #[must_use]
    pub fn with_host(&self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self.clone() }
    }

    /// One number of the app's `/stats`.
    pub async fn stat(&self, name: &str) -> u64 {
        let stats = session::get(self, "/stats").await.json();
        stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
    }

    /// Waits until `is` accepts a number of the app's `/stats`.
    pub async fn until(&self, name: &str, is: impl Fn(u64) -> bool) -> u64 {
        eventually(&format!("{name} to be right"), async || {
            Some(self.stat(name).await).filter(|now| is(*now))
        })
        .await
    }

    /// Opens the app's gate once.
    pub async fn next(&self) {
        assert_eq!(session::get(self, "/next").await.status, 200);
    }
}

/// Runs a check one way. A cold app starts with a delay, so that the first request is certainly held.
pub async fn run<F: Future<Output = ()>>(
    programs: &Programs,
    way: Way,
    app: App,
    check: impl FnOnce(Target) -> F,
) {
    let name = app.name().to_owned();
    match way {
        Way::Straight => {
            let pod = Pod::start(programs, &app).await;
            check(pod.target.clone()).await;
        }
        Way::Cold => {
            let rouse = Rouse::start(programs, Config::of(app.env("START_DELAY_MS", 100))).await;
            assert_eq!(rouse.admin.service(&name).await.state, "zero");
            check(rouse.target(true)).await;
            let starts = rouse.admin.cold_starts(&name).await;
            assert!(!starts.is_empty(), "a request to an app at zero is recorded as a cold start");
            rouse.stop().await;
        }
        Way::Warm | Way::Sidecar => {
            let app = if way == Way::Sidecar { app.sidecar() } else { app };
            let rouse = Rouse::start(programs, Config::of(app.warm())).await;
            rouse.ready(&name).await;
            let mut target = rouse.target(false);
            target.gateway = target.gateway.map(|it| Gateway { sidecar: way == Way::Sidecar, ..it });
            check(target).await;
            rouse.stop().await;
        }
    }
}

/// A test for each way of a check: `ways!(name_of_the_check, App::http());`
#[macro_export]
macro_rules! ways {
    ($check:ident, $app:expr) => {
        $crate::ways!($check as $check, $app);
    };
    ($check:ident as $name:ident, $app:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "what makes the app differs")]
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn straight_to_the_app() {
                $crate::target::run(&$crate::programs!(), $crate::target::Way::Straight, $app, super::$check)
                    .await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn through_a_cold_gateway() {
                $crate::target::run(&$crate::programs!(), $crate::target::Way::Cold, $app, super::$check)
                    .await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn through_a_warm_gateway() {
                $crate::target::run(&$crate::programs!(), $crate::target::Way::Warm, $app, super::$check)
                    .await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn through_a_gateway_and_a_sidecar() {
                $crate::target::run(&$crate::programs!(), $crate::target::Way::Sidecar, $app, super::$check)
                    .await;
            }
        }
    };
}
