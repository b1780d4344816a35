//! The product's controller of `EndpointSlice`s, by itself in a process.

use std::sync::Arc;

use rouse_kube::client::connect;
use rouse_kube::slices::{SliceController, SliceSettings};
use rouse_net::clock::TokioClock;
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::args::SliceControllerRole;

/// Prints `ready` when it has listed everything, and runs until it is ended.
pub(crate) fn run(ask: &SliceControllerRole) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let client = connect::connect(Some(&ask.kubeconfig), None).await?;
        let settings = SliceSettings::new(Arc::new(TokioClock::new()), 7);
        let controller = SliceController::new(client, settings);
        let ready = async {
            controller.synced().await;
            println!("ready");
            std::future::pending::<()>().await;
        };
        let running = Arc::clone(&controller).run(CancellationToken::new());
        tokio::select! {
            ended = running => Ok(ended?),
            () = ready => Ok(()),
        }
    })
}
