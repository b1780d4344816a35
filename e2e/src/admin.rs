//! A client of the admin API: services, cold starts and metrics.

use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::client::session::{self, FullResponse};
use crate::metrics::Metrics;
use crate::target::Target;
use crate::wait::eventually;

/// The admin listener of one gateway.
#[derive(Debug, Clone)]
pub struct Admin(SocketAddr);

/// A service, as `/api/v1/services` has it.
#[derive(Debug, Clone, Deserialize)]
pub struct Service {
    /// `local/<app>`.
    pub service: String,
    /// `zero`, `waking`, `serving` or `draining`.
    pub state: String,
    /// How many requests are held.
    pub holds: u64,
    /// How many requests are in flight.
    pub in_flight: u64,
    /// Its pods.
    pub endpoints: Vec<Endpoint>,
}

/// A pod's address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Endpoint {
    /// Its pod's name.
    pub pod: String,
    /// Its pod's identity.
    pub uid: String,
    /// Where it answers.
    pub address: SocketAddr,
    /// `Starting`, `Ready`, `Draining`.
    pub state: String,
    /// The source of its state: `slice`, `probe` or `push`. A pod that is not in the snapshot any more has none.
    pub source: Option<String>,
    /// How many requests it has in flight.
    pub in_flight: u64,
    /// Its process.
    pub pid: Option<u32>,
}

impl Admin {
    /// At `address`.
    pub fn at(address: SocketAddr) -> Self {
        Self(address)
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.0
    }

    /// GET, on a connection of its own.
    pub async fn get(&self, path: &str) -> FullResponse {
        let target = Target::plain(self.0);
        // The admin API closes connections that send nothing for 10 s, which can happen to a test on a busy machine.
        for _ in 0..2 {
            if let Ok(answer) = session::try_get(&target, path).await {
                return answer;
            }
        }
        session::get(&target, path).await
    }

    /// All services.
    pub async fn services(&self) -> Vec<Service> {
        let answer = self.get("/api/v1/services").await;
        serde_json::from_slice(&answer.body).unwrap_or_else(|error| {
            panic!("{error} in the services: {} {}", answer.status, answer.text());
        })
    }

    /// The service of an app.
    pub async fn service(&self, app: &str) -> Service {
        self.service_named(&format!("local/{app}")).await
    }

    /// The service of this whole name: namespace, slash, name.
    pub async fn service_named(&self, name: &str) -> Service {
        let services = self.services().await;
        let found = services.iter().find(|service| service.service == name).cloned();
        found.unwrap_or_else(|| panic!("no {name} among {services:?}"))
    }

    /// Waits until `is` accepts the app's service; `what` describes that.
    pub async fn until(&self, app: &str, what: &str, is: impl Fn(&Service) -> bool) -> Service {
        let what = format!("{app}: {what}");
        eventually(&what, async || Some(self.service(app).await).filter(|service| is(service))).await
    }

    /// Cold starts of an app, newest first.
    pub async fn cold_starts(&self, app: &str) -> Vec<Value> {
        let answer = self.get(&format!("/api/v1/cold-starts?service=local/{app}&limit=100")).await;
        match answer.json() {
            Value::Array(starts) => starts,
            other => panic!("not a list of cold starts: {other}"),
        }
    }

    /// The metrics now.
    pub async fn metrics(&self) -> Metrics {
        Metrics::parse(&self.get("/metrics").await.text())
    }

    /// `rouse_requests_total` with this code.
    pub async fn requests(&self, code: &str) -> f64 {
        self.metrics().await.sum("rouse_requests_total", &[("code", code)])
    }
}
