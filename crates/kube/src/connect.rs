//! The way to the API server: a kubeconfig, or the `ServiceAccount` of our own pod.

use std::path::Path;

pub use kube::Client;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file is not there, or not one.
    #[error("cannot read the kubeconfig {path}")]
    Kubeconfig {
        /// Which file.
        path: String,
        /// Why.
        source: Box<kube::config::KubeconfigError>,
    },
    /// There are contexts, but not this one.
    #[error("there is no context {context:?} in the kubeconfig {path}; there {}", contexts(.there))]
    NoContext {
        /// Which was asked for.
        context: String,
        /// Where.
        path: String,
        /// Which there are.
        there: Vec<String>,
    },
    /// Neither a kubeconfig nor a `ServiceAccount`.
    #[error("neither a kubeconfig nor a ServiceAccount says where the API server is")]
    Nowhere(#[source] Box<kube::config::InferConfigError>),
    /// What it says makes no client: a bad certificate, a bad address.
    #[error("cannot talk to the API server")]
    Client(#[source] Box<kube::Error>),
}

fn contexts(there: &[String]) -> String {
    match there {
        [] => "are none".to_owned(),
        [only] => format!("is {only}"),
        all => format!("are {}", all.join(", ")),
    }
}

/// A client by this kubeconfig; without one, by `KUBECONFIG`, `~/.kube/config` or the pod's own `ServiceAccount`, whose
/// token is read again when it is renewed. With a `context`, by that of a kubeconfig and nothing else. Nothing is asked
/// of the API server yet. Must be called within a runtime.
pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ConnectError> {
    let config = match (kubeconfig, context) {
        (None, None) => Config::infer().await.map_err(|error| ConnectError::Nowhere(Box::new(error)))?,
        (path, context) => named(path, context).await?,
    };
    Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))
}

async fn named(path: Option<&Path>, context: Option<&str>) -> Result<Config, ConnectError> {
    let place =
        path.map_or_else(|| "of KUBECONFIG or ~/.kube/config".to_owned(), |path| path.display().to_string());
    let fault = |source| ConnectError::Kubeconfig { path: place.clone(), source: Box::new(source) };
    let file = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from).map_err(fault)?;
    if let Some(context) = context {
        let there: Vec<String> = file.contexts.iter().map(|there| there.name.clone()).collect();
        if !there.iter().any(|there| there == context) {
            return Err(ConnectError::NoContext { context: context.to_owned(), path: place, there });
        }
    }
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(file, &options).await.map_err(fault)
}
