//! Reads the image of the installed gateway, so that the next step can repeat it: the default would replace it.

use std::time::Duration;

use rouse_kube::client::connect::Client;
use rouse_kube::survey::GATEWAY;
use serde::Deserialize;
use tokio::time::timeout;

/// How long the API server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Deployment {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    spec: Pod,
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default)]
    name: String,
    image: Option<String>,
}

/// The image of the gateway in `namespace`; `None` if there is no gateway, or it cannot be read.
pub(super) async fn of_gateway(client: &Client, namespace: &str) -> Option<String> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{GATEWAY}");
    let request = http::Request::get(path).body(Vec::new()).ok()?;
    let Deployment { spec } = timeout(ANSWER, client.request(request)).await.ok()?.ok()?;
    let containers = spec.template.spec.containers;
    let named = containers.iter().find(|container| container.name == "gateway");
    // It goes into a command that people copy: allow no characters that are special to a shell.
    let plain = |image: &&String| image.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:/@".contains(&b));
    named.or(containers.first())?.image.as_ref().filter(|image| !image.is_empty()).filter(plain).cloned()
}
