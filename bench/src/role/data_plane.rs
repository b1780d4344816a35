//! Rouse's data plane alone, composed as in `rouse up`, with a given number of routes, services and endpoints, since one
//! machine cannot run that many pods. Every pod is the same upstream server, at a loopback address of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry as Shown;
use rouse_core::endpoint::{
    Conditions, PodRef, PodUid, PortName, ServiceId, Slice, SliceEndpoint, SlicePort,
};
use rouse_core::engine::Engine;
use rouse_core::hold::HoldLimits;
use rouse_core::registry::{self, Registry};
use rouse_core::service::{Service, ServiceSpec};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_net::clock::TokioClock;
use rouse_net::listen;
use rouse_proxy::budget::ConnectionLimits;
use rouse_proxy::listen::{Gateway, ListenerOptions, ProxyListener, ProxySettings, Workers};
use rouse_proxy::message::Placement;
use rouse_proxy::request::TrustedProxies;
use rouse_proxy::routing::{NoPodPolicy, Route, RouteTable, Rule, Target};
use rouse_proxy::telemetry::metrics::Metrics;
use rouse_proxy::upstream::{Backend, ColdStartHeaders, Timeouts, UpstreamProtocol};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::block_on;
use crate::Result;
use crate::args::DataPlane;

/// As `rouse up --workers 2`.
const WORKERS: NonZeroUsize = NonZeroUsize::new(2).unwrap();
/// The same as in `rouse up` with the file of the other measurements.
const TIMEOUTS: Timeouts = Timeouts {
    readiness: Some(Duration::from_secs(30)),
    request: Some(Duration::from_mins(1)),
    response_header: Some(Duration::from_secs(30)),
    connect: Duration::from_millis(500),
};
const TARGET: u32 = 1_000;
/// As many as Kubernetes puts into one slice.
const SLICE: usize = 100;
const PORT: &str = "http";

/// The route that gets the requests: neither the first nor the last that a search would find.
const ASKED: u32 = 5;

/// The host of the requests.
pub(crate) fn host() -> String {
    host_of(ASKED)
}

fn host_of(route: u32) -> String {
    format!("h{route}.bench")
}

/// An engine that is never called: all services have pods.
struct NoEngine;

impl Engine for NoEngine {
    fn wake(&self, _: &ServiceId) {}
}

/// Runs until SIGTERM.
pub(crate) fn run(size: &DataPlane) -> Result<()> {
    if !is_possible(size) {
        return Err(format!("impossible size: {size:?}").into());
    }
    block_on(serve(*size))
}

/// Whether the requested host leads to a pod, and every service has a route.
fn is_possible(size: &DataPlane) -> bool {
    size.routes > ASKED && (1..=size.routes).contains(&size.services) && size.endpoints > 0
}

async fn serve(size: DataPlane) -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let clock = TokioClock::new();
    let registry = Registry::new(registry::RegistrySettings::default(), Arc::new(clock), Arc::new(NoEngine));
    let settings = ProxySettings {
        id: "bench".into(),
        placement: Placement::Gateway,
        trusted: TrustedProxies::private(),
        bounds: HoldLimits::default(),
        clock,
        limits: ConnectionLimits::default(),
        cold_start: ColdStartHeaders::default(),
        access: None,
    };
    let gateway = Gateway::new(settings, Metrics::new(&mut Shown::default()));
    gateway.set_routes(routes(size, &services(size, &registry)?)?);
    let listeners = listen::bind(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 0))])?;
    let address = listeners.first().ok_or("there is no listener")?.address();
    let plain = |listener| ProxyListener { listener, options: ListenerOptions::default() };
    let listeners = listeners.into_iter().map(plain).collect();
    let mut workers = Workers::start(&gateway, listeners, WORKERS)?;
    let mut timer = JoinSet::new();
    timer.spawn(async move { registry.drive(|due| clock.sleep_until(due)).await });
    println!("listening on http://{address}");
    tokio::select! {
        _ = term.recv() => Ok(()),
        () = workers.ended() => Err("the workers ended".into()),
        _ = timer.join_next() => Err("the timer ended".into()),
    }
}

/// All services, each with its pods.
fn services(size: DataPlane, registry: &Registry) -> Result<Vec<Arc<Service>>> {
    let spec =
        ServiceSpec { ports: vec![PortName::new(PORT)], concurrency: ConcurrencyLimits::new(TARGET, 0) };
    let mut pods = 0;
    let mut all = Vec::new();
    for number in 0..size.services {
        let id: ServiceId = format!("bench/service-{number}").parse()?;
        let service = registry.declare(&id, &spec);
        let count = if number == ASKED % size.services { size.endpoints } else { 1 };
        service.replace_slices(slices(pods..pods + count, size.port));
        pods += count;
        all.push(service);
    }
    Ok(all)
}

fn slices(pods: std::ops::Range<u32>, port: u16) -> Vec<(String, Slice)> {
    let endpoint = |&number: &u32| SliceEndpoint {
        ip: IpAddr::V4(pod_ip(number)),
        conditions: Conditions::new(true, true, false),
        pod: Some(PodRef {
            uid: PodUid::new(&format!("uid-{number}")),
            name: format!("bench/pod-{number}").into(),
        }),
    };
    let ports = || vec![SlicePort { name: PortName::new(PORT), number: port }];
    let numbers: Vec<u32> = pods.collect();
    let slice = |part: &[u32]| Slice { ports: ports(), endpoints: part.iter().map(endpoint).collect() };
    numbers.chunks(SLICE).enumerate().map(|(at, part)| (format!("slice-{at}"), slice(part))).collect()
}

/// One of 127.1.0.0 and above: all of 127.0.0.0/8 is this machine.
fn pod_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number)
}

/// Each route is a host of its own, and the services have equally many.
fn routes(size: DataPlane, services: &[Arc<Service>]) -> Result<RouteTable<Arc<Route>>> {
    let rule = |(number, service): (u32, &Arc<Service>)| {
        let port = service.port(&PortName::new(PORT)).ok_or("a service has no port")?;
        let target = Target::Backend(Backend::direct(Arc::clone(service), port, UpstreamProtocol::Http1));
        let name = format!("route-{number}");
        Ok(Rule {
            hosts: vec![host_of(number).parse()?],
            paths: Vec::new(),
            headers: Vec::new(),
            created: number.into(),
            name: name.clone(),
            owner: "".into(),
            target: Arc::new(Route {
                name: name.as_str().into(),
                service: service.id().clone(),
                target,
                timeouts: TIMEOUTS,
                no_pod: NoPodPolicy::default(),
                meter: None,
            }),
        })
    };
    let rules = (0..size.routes).zip(services.iter().cycle()).map(rule).collect::<Result<Vec<_>>>()?;
    Ok(RouteTable::new(rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(routes: u32, services: u32, endpoints: u32) -> (RouteTable<Arc<Route>>, Vec<Arc<Service>>) {
        let size = DataPlane { port: 80, routes, services, endpoints };
        let clock = Arc::new(TokioClock::new());
        let registry = Registry::new(registry::RegistrySettings::default(), clock, Arc::new(NoEngine));
        let services = super::services(size, &registry).unwrap();
        (super::routes(size, &services).unwrap(), services)
    }

    fn endpoints(service: &Service) -> usize {
        let snapshot = service.snapshot();
        snapshot.port(&PortName::new(PORT)).unwrap().endpoints().len()
    }

    #[tokio::test]
    async fn the_host_that_is_asked_leads_to_the_service_with_the_endpoints() {
        for (routes, services, count) in [(10, 1, 1), (10, 1, 1_000), (1_000, 100, 10), (1_000, 1_000, 10)] {
            let (table, all) = built(routes, services, count);
            assert_eq!(table.rules().len(), usize::try_from(routes).unwrap());
            assert_eq!(all.len(), usize::try_from(services).unwrap());
            let rule = table.rules().iter().find(|rule| rule.hosts == [host().parse().unwrap()]).unwrap();
            let Target::Backend(backend) = &rule.target.target else { panic!("it has a backend") };
            assert_eq!(endpoints(&backend.service), usize::try_from(count).unwrap());
            let others = all.iter().filter(|one| one.id() != backend.service.id());
            assert!(others.into_iter().all(|one| endpoints(one) == 1));
        }
    }

    #[test]
    fn every_pod_has_an_address_of_its_own_on_loopback() {
        let ips: std::collections::HashSet<Ipv4Addr> = (0..70_000).map(pod_ip).collect();
        assert_eq!(ips.len(), 70_000);
        assert!(ips.iter().all(Ipv4Addr::is_loopback));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for (routes, services, endpoints) in [(5, 1, 1), (10, 0, 1), (10, 11, 1), (10, 1, 0)] {
            let size = DataPlane { port: 80, routes, services, endpoints };
            assert!(!is_possible(&size), "{size:?}");
        }
    }
}
