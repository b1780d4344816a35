//! The same over real sockets, in real time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rouse_core::load_meter::LoadMeter;
use rouse_grpc::report::client::ControllerUrl;
use rouse_net::peers::{Resolver, ResolverFuture, TcpDialer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::{AUTHORITY, Controller, GENEROUS, Gateway, GatewayOptions, Told, reporter, tls};

/// Resolves every name to these addresses.
struct Names(Vec<SocketAddr>);

impl Resolver for Names {
    fn lookup<'a>(&'a self, name: &'a str, _port: u16) -> ResolverFuture<'a> {
        Box::pin(async move {
            match name {
                "rouse-controller.rouse-system.svc.cluster.local." => Ok(self.0.clone()),
                other => Err(io::Error::other(other.to_owned())),
            }
        })
    }
}

/// Serves a controller on a port of its own.
async fn serve(controller: &Controller, tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (server, tls) = (controller.server.clone(), tls(&AUTHORITY, crate::harness::NAME));
    tasks.spawn(async move { server.serve(listener, tls).await });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_report_to_three_controllers_over_tls() {
    let (mut tasks, mut addresses) = (JoinSet::new(), Vec::new());
    let controllers = [Controller::new(), Controller::new(), Controller::new()];
    for controller in &controllers {
        addresses.push(serve(controller, &mut tasks).await);
    }
    let start = |name: &str| {
        let (names, dialer) = (Arc::new(Names(addresses.clone())), Arc::new(TcpDialer::default()));
        Gateway::start_with(names, dialer, name, GatewayOptions::default())
    };
    let gateways = ["gateway-1", "gateway-2", "gateway-3"].map(start);
    let meters = [0, 1, 2].map(|n: usize| gateways[n].service("cart"));
    let present: Vec<_> = meters.iter().map(LoadMeter::begin).collect();
    for controller in &controllers {
        controller.sink.until("all load is known", |sink| sink.present(meters[0].key()) == 3).await;
    }
    drop(present);
    for controller in &controllers {
        controller.sink.until("it is over", |sink| sink.present(meters[0].key()) == 0).await;
    }
    let [first, ..] = gateways;
    first.stop().await;
    for controller in &controllers {
        let left = Told::Left { from: reporter("gateway-1") };
        controller.sink.until("it has left", |sink| sink.all().contains(&left)).await;
        // Connected gateways do not hold up the stop.
        controller.stop.cancel();
    }
    while let Some(ended) = timeout(GENEROUS, tasks.join_next()).await.unwrap() {
        ended.unwrap();
    }
    assert!(controllers.iter().all(|controller| controller.server.connected().is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_needs_no_name_and_its_certificate_must_have_it() {
    let controller = Controller::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (server, tls) = (controller.server.clone(), tls(&AUTHORITY, "127.0.0.1"));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { server.serve(listener, tls).await });
    let url: ControllerUrl = format!("https://{address}").parse().unwrap();
    let (names, dialer) = (Arc::new(Names(Vec::new())), Arc::new(TcpDialer::default()));
    let gateway =
        Gateway::start_with(names, dialer, "gateway-1", GatewayOptions { url, ..GatewayOptions::default() });
    let meter = gateway.service("cart");
    let _request = meter.begin();
    controller.sink.until("the load is known", |sink| sink.present(meter.key()) == 1).await;
    gateway.stop().await;
    controller.stop.cancel();
    timeout(GENEROUS, tasks.join_next()).await.unwrap().unwrap().unwrap();
}
