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
    /// Neither a kubeconfig nor a `ServiceAccount`.
    #[error("neither a kubeconfig nor a ServiceAccount says where the API server is")]
    Nowhere(#[source] Box<kube::config::InferConfigError>),
    /// What it says makes no client: a bad certificate, a bad address.
    #[error("cannot talk to the API server")]
    Client(#[source] Box<kube::Error>),
}

/// A client by this kubeconfig; without one, by `KUBECONFIG`, `~/.kube/config` or the pod's own `ServiceAccount`, whose
/// token is read again when it is renewed. Nothing is asked of the API server yet. Must be called within a runtime.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => {
            let fault = |source| {
                let path = path.display().to_string();
                ConnectError::Kubeconfig { path, source: Box::new(source) }
            };
            let file = Kubeconfig::read_from(path).map_err(fault)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(fault)?
        }
        None => Config::infer().await.map_err(|error| ConnectError::Nowhere(Box::new(error)))?,
    };
    Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))
}
