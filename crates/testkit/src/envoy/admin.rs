//! Envoy's admin interface: endpoints, listeners, counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{Envoy, eventually, eventually_equal};

/// An endpoint of a cluster, as Envoy has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvoyHost {
    /// Its address.
    pub address: SocketAddr,
    /// The health that the control plane gave it: `HEALTHY`, `DRAINING`.
    pub health: String,
}

/// An address in the JSON of the admin interface.
fn socket_address(value: &Value) -> Option<SocketAddr> {
    let socket = &value["socket_address"];
    let port = socket["port_value"].as_u64().unwrap_or_default();
    Some(SocketAddr::new(socket["address"].as_str()?.parse().ok()?, port.try_into().ok()?))
}

impl Envoy {
    /// The answer at `path`, which asks for JSON.
    pub async fn json(&self, path: &str) -> Value {
        let answer = self.ask(path).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    }

    /// The endpoints of a cluster, in order of their addresses; `None` if Envoy has no such cluster.
    pub async fn hosts(&self, cluster: &str) -> Option<Vec<EnvoyHost>> {
        let clusters = self.json("/clusters?format=json").await;
        let cluster = clusters["cluster_statuses"].as_array()?.iter().find(|it| it["name"] == cluster)?;
        let hosts = cluster["host_statuses"].as_array().into_iter().flatten().map(|host| EnvoyHost {
            address: socket_address(&host["address"]).unwrap(),
            health: host["health_status"]["eds_health_status"].as_str().unwrap_or_default().to_owned(),
        });
        let mut hosts: Vec<_> = hosts.collect();
        hosts.sort();
        Some(hosts)
    }

    /// Waits until a cluster has exactly these endpoints, in any order.
    pub async fn wait_for_hosts(&self, cluster: &str, expected: &[EnvoyHost]) {
        let mut expected = expected.to_vec();
        expected.sort();
        let what = format!("the endpoints of {cluster}");
        eventually_equal(&what, &Some(expected), async || self.hosts(cluster).await).await;
    }

    /// Waits until a listener accepts connections, and returns its address.
    pub async fn listener(&self, name: &str) -> SocketAddr {
        let address = self
            .find(&format!("the listener {name}"), "/listeners?format=json", |listeners| {
                let mut all = listeners["listener_statuses"].as_array()?.iter();
                socket_address(&all.find(|it| it["name"] == name)?["local_address"])
            })
            .await;
        // Envoy lists it before its worker listens.
        eventually(name, async || TcpStream::connect(address).await.ok()).await;
        address
    }

    /// All counters and gauges whose names begin with `prefix`.
    pub async fn stats(&self, prefix: &str) -> BTreeMap<String, u64> {
        let text = self.ask("/stats").await;
        let lines = text.lines().filter(|line| line.starts_with(prefix));
        lines
            .filter_map(|line| line.split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    /// A counter or a gauge; 0 if Envoy does not have it.
    pub async fn stat(&self, name: &str) -> u64 {
        self.stats(name).await.get(name).copied().unwrap_or_default()
    }

    /// Waits until a counter or a gauge has a value that `is_expected` accepts.
    pub async fn wait_for_stat(&self, name: &str, is_expected: impl Fn(u64) -> bool) -> u64 {
        eventually(name, async || Some(self.stat(name).await).filter(|value| is_expected(*value))).await
    }
}

/// Sends one GET over a connection of its own, and returns the answer with its whole body.
pub async fn get(
    server: SocketAddr,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Response<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::get(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let exchange = async {
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let (head, body) = response.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    };
    // The connection moves only while it is polled, and ends after the answer.
    let (mut connection, mut exchange) = (std::pin::pin!(connection), std::pin::pin!(exchange));
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        ended = &mut connection => {
            ended?;
            exchange.await
        }
    }
}
