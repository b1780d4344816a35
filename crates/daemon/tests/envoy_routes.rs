//! Random route tables: the data plane and a real Envoy choose the same route for each request.
//!
//! Each route answers by itself with its number, so no pods are needed. It has its own harness: without an Envoy on this machine nothing
//! can run, and that is reported.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![expect(clippy::print_stderr, reason = "a run prints what it skips")]

use std::net::SocketAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use libtest_mimic::{Arguments, Trial};
use rouse_core::host::Host;
use rouse_core::random::Random;
use rouse_daemon::envoy::translate;
use rouse_grpc::GrpcTransport;
use rouse_grpc::xds::cache::ResourceCache;
use rouse_grpc::xds::publisher::{EnvoyPublisher, EnvoyPublisherHandle};
use rouse_grpc::xds::{Access, XdsMetrics, XdsParts, XdsServer, XdsSettings};
use rouse_net::clock::TokioClock;
use rouse_proxy::routing::{
    FixedResponse, HeaderMatch, NoPodPolicy, Route, RouteTable, Rule, StaticResponse, Target,
};
use rouse_proxy::upstream::Timeouts;
use rouse_testkit::envoy::{Envoy, HOW_TO_INSTALL, binary, bootstrap, eventually, get};
use rouse_testkit::fakes::Bench;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const TABLES: u64 = 200;
const REQUESTS: usize = 50;
/// A host of the test's own, which says the number of the table that Envoy has.
const MARKER: &str = "marker.test";

/// Each host pattern belongs to one owner.
const HOSTS: [(&str, &str); 9] = [
    ("a.b.c", "one"),
    ("b.c", "one"),
    ("*.b.c", "one"),
    ("*", "one"),
    ("x.c", "two"),
    ("*.c", "two"),
    ("c", "two"),
    ("z.b.c", "two"),
    ("10.0.0.1", "two"),
];
/// Assigned to an owner, also without a rule.
const ASSIGNED: [(&str, &str); 3] = [("d.c", "one"), ("*.z.b.c", "two"), ("other", "two")];
const PATHS: [&str; 7] = ["/", "/s", "/s/t", "/s/", "/st", "/s/t/u", "/S"];
const NAMES: [&str; 2] = ["x-a", "x-b"];
const VALUES: [&str; 2] = ["1", "two words"];
const ASKED_HOSTS: [&str; 14] = [
    "a.b.c",
    "A.b.C:80",
    "a.b.c.",
    "b.c",
    "z.b.c",
    "q.z.b.c",
    "q.r.b.c",
    "x.c",
    "c",
    "other",
    "d.c",
    "nowhere",
    "10.0.0.1:8080",
    "y.x.c",
];
const ASKED_PATHS: [&str; 11] =
    ["/", "/s", "/s/", "/s/t", "/stu", "/st", "/s/t/u/v", "/q", "/s?q=/s/t", "/S", "/s/t/?a"];

fn main() {
    let program = binary();
    if program.is_none() {
        eprintln!("SKIPPED: the random route tables: {HOW_TO_INSTALL}");
    }
    let trial = Trial::test("envoy_and_the_data_plane_choose_the_same_route", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(same_routes());
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial.with_ignored_flag(program.is_none())]).exit();
}

async fn same_routes() {
    let bench = Bench::new();
    let (server, view, _tasks) = control_plane(&bench).await;
    let envoy = Envoy::start(&binary().unwrap(), with_listener(bootstrap("routes", server))).await;
    let address = envoy.listener("requests").await;
    let (mut found, mut missed) = (0, 0);
    for seed in 0..TABLES {
        let mut random = Random::new(seed);
        let table = table(&mut random, seed);
        view.set_routes(translate(&table, |_| false));
        eventually("Envoy to have the next table", async || {
            let answer = get(address, MARKER, "/", &[]).await.ok()?;
            (*answer.body() == seed.to_string()).then_some(())
        })
        .await;
        for _ in 0..REQUESTS {
            let (host, path) = (pick(&mut random, &ASKED_HOSTS), pick(&mut random, &ASKED_PATHS));
            let mut headers = Vec::new();
            for name in NAMES {
                if random.below(2) == 0 {
                    headers.push((name, pick(&mut random, &VALUES)));
                }
            }
            let parsed = Host::parse(host.as_bytes()).unwrap();
            let expected = table.find(Some(&parsed), &head(path, &headers)).map(|rule| rule.name.clone());
            let answer = get(address, host, path, &headers).await.unwrap();
            let is_routed = answer.status() == StatusCode::OK;
            let routed = is_routed.then(|| String::from_utf8_lossy(answer.body()).into_owned());
            assert_eq!(routed, expected, "table {seed}: {host}{path} {headers:?}");
            *if expected.is_some() { &mut found } else { &mut missed } += 1;
        }
    }
    // Otherwise the tables say little.
    assert!(found > 1000 && missed > 1000, "{found} requests had a route, {missed} had none");
}

/// A control plane on a free port: its address, what changes its routes, and its tasks.
async fn control_plane(bench: &Bench) -> (SocketAddr, EnvoyPublisherHandle, JoinSet<()>) {
    let cache = Arc::<ResourceCache>::default();
    let (publisher, view) = EnvoyPublisher::new(Arc::clone(&bench.registry), Arc::clone(&cache), 1000);
    let parts = XdsParts {
        cache,
        access: Access::Any,
        clock: Arc::new(TokioClock::new()),
        metrics: XdsMetrics::new(&mut prometheus_client::registry::Registry::default()),
    };
    let server = XdsServer::new(XdsSettings::default(), parts, CancellationToken::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(publisher.run());
    tasks.spawn(async move { server.serve(listener, GrpcTransport::Plain).await });
    (address, view, tasks)
}

/// A listener whose routes come from the control plane, as `rouse xds bootstrap` prints it.
fn with_listener(mut bootstrap: Value) -> Value {
    let manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    let rds = json!({
        "route_config_name": "rouse",
        "config_source": { "ads": {}, "resource_api_version": "V3" },
    });
    let filter = json!({
        "name": "http",
        "typed_config": {
            "@type": format!("type.googleapis.com/{manager}"),
            "stat_prefix": "requests",
            "rds": rds,
            "http_filters": [{ "name": "router", "typed_config": { "@type": router } }],
        },
    });
    bootstrap["static_resources"]["listeners"] = json!([{
        "name": "requests",
        "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } },
        "filter_chains": [{ "filters": [filter] }],
    }]);
    bootstrap
}

fn pick<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len())]
}

fn head(path: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

/// What a route matches.
struct Matches {
    hosts: Vec<&'static str>,
    paths: Vec<&'static str>,
    headers: Vec<(&'static str, Option<&'static str>)>,
}

/// A table of up to eight random routes, and the marker. The name of a route is what it answers.
fn table(random: &mut Random, seed: u64) -> RouteTable<Arc<Route>> {
    let marker = Matches { hosts: vec![MARKER], paths: Vec::new(), headers: Vec::new() };
    let mut rules = vec![rule(&seed.to_string(), "test", marker, 0)];
    for number in 0..random.below(9) {
        let (first, owner) = pick(random, &HOSTS);
        let (second, other) = pick(random, &HOSTS);
        let mut hosts = vec![first];
        hosts.extend((owner == other).then_some(second));
        let paths = (0..random.below(3)).map(|_| pick(random, &PATHS)).collect();
        let mut headers = Vec::new();
        for name in NAMES {
            match random.below(4) {
                0 => headers.push((name, None)),
                1 => headers.push((name, Some(pick(random, &VALUES)))),
                _ => {}
            }
        }
        let created = random.next_u64() % 3;
        rules.push(rule(&format!("route-{number}"), owner, Matches { hosts, paths, headers }, created));
    }
    let mut assigned = Vec::new();
    for (host, owner) in ASSIGNED {
        if random.below(3) == 0 {
            assigned.push((host.parse().unwrap(), owner.into()));
        }
    }
    RouteTable::with_owners(rules, assigned)
}

/// A rule that answers its own name.
fn rule(name: &str, owner: &str, matches: Matches, created: u64) -> Rule<Arc<Route>> {
    let response = StaticResponse::new(StatusCode::OK, [], name.to_owned().into());
    let fixed = FixedResponse { response: Arc::new(response), when_unavailable: false };
    let header = |(name, value): (&'static str, Option<&'static str>)| HeaderMatch {
        name: HeaderName::from_static(name),
        value: value.map(HeaderValue::from_static),
    };
    Rule {
        hosts: matches.hosts.iter().map(|host| host.parse().unwrap()).collect(),
        paths: matches.paths.iter().map(|path| path.parse().unwrap()).collect(),
        headers: matches.headers.into_iter().map(header).collect(),
        created,
        name: name.to_owned(),
        owner: owner.into(),
        target: Arc::new(Route {
            name: name.into(),
            service: "shop/none".parse().unwrap(),
            target: Target::NoService,
            timeouts: Timeouts::default(),
            no_pod: NoPodPolicy { fixed: Some(fixed), ..NoPodPolicy::default() },
            meter: None,
        }),
    }
}
