//! `rouse xds` and `rouse xds bootstrap`: the text of the bootstrap, its errors, the running role, and that a real Envoy takes both.
//!
//! It has its own harness, because Envoy may be missing, and a trial that cannot run must report that.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    missing_docs,
    reason = "a test may panic, also in its helpers"
)]

mod role;

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Arguments, Trial};
use rouse_config::document::from_node;
use rouse_config::document::yaml::Reader;
use rouse_testkit::certificates::Authority;
use rouse_testkit::envoy::{HOW_TO_INSTALL, binary};
use serde_json::{Value, json};

const LOCAL: &str = "--server 127.0.0.1:18000";

fn main() {
    let arguments = Arguments::from_args();
    let envoy = binary();
    if envoy.is_none() {
        eprintln!("SKIPPED: no bootstrap is shown to Envoy: {HOW_TO_INSTALL}");
    }
    let trial = |name: &str, there: bool, check: fn()| {
        Trial::test(name, move || {
            check();
            Ok(())
        })
        .with_ignored_flag(!there)
    };
    let trials = vec![
        trial("a_bootstrap_names_one_cluster_for_resources_and_load_reports", true, one_cluster),
        trial("routes_come_over_the_stream_and_long_streams_may_be_silent", true, listener),
        trial("servers_are_resolved_if_one_has_a_name", true, servers),
        trial("with_a_ca_the_servers_prove_their_names_and_envoy_its_own", true, certificates),
        trial("the_same_arguments_give_the_same_text_and_odd_paths_stay_one_word", true, text),
        trial("plain_text_beyond_this_machine_is_warned_about", true, warning),
        trial("bad_arguments_are_refused_with_what_is_expected", true, refusals),
        trial(
            "until_the_cluster_is_known_envoys_get_no_answer_and_nothing_is_ever_written",
            true,
            role::door,
        ),
        trial("a_real_envoy_takes_every_bootstrap", envoy.is_some(), validate),
        trial(
            "a_real_envoy_gets_the_gateways_for_a_service_at_zero_and_keeps_them",
            envoy.is_some(),
            role::envoy,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

struct Answer {
    code: i32,
    out: String,
    err: String,
}

fn bootstrap(arguments: &str) -> Answer {
    let mut rouse = Command::new(env!("CARGO_BIN_EXE_rouse"));
    let output = rouse.args(["xds", "bootstrap"]).args(arguments.split_whitespace()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn read(text: &str) -> Value {
    let mut reader = Reader::new(text, 1);
    assert!(reader.next_document().unwrap(), "{text}");
    let value = from_node(reader.node().unwrap()).unwrap();
    assert!(!reader.next_document().unwrap(), "one document: {text}");
    value
}

/// The bootstrap that is printed.
fn printed(arguments: &str) -> Value {
    let answer = bootstrap(arguments);
    assert_eq!(answer.code, 0, "{arguments}: {}", answer.err);
    read(&answer.out)
}

#[track_caller]
fn at<'v>(value: &'v Value, pointer: &str) -> &'v Value {
    value.pointer(pointer).unwrap_or_else(|| panic!("there is no {pointer} in {value}"))
}

fn one_cluster() {
    let all = printed(&format!("{LOCAL} --node-id edge-1"));
    assert_eq!(at(&all, "/node"), &json!({"id": "edge-1", "cluster": "rouse"}));
    let admin = json!({"address": "127.0.0.1", "port_value": 9901});
    assert_eq!(at(&all, "/admin/address/socket_address"), &admin);
    let servers = json!([{"envoy_grpc": {"cluster_name": "rouse_xds"}}]);
    for (place, kind) in
        [("/dynamic_resources/ads_config", "DELTA_GRPC"), ("/cluster_manager/load_stats_config", "GRPC")]
    {
        assert_eq!(at(&all, &format!("{place}/api_type")), kind);
        assert_eq!(at(&all, &format!("{place}/transport_api_version")), "V3");
        assert_eq!(at(&all, &format!("{place}/grpc_services")), &servers);
    }
    for resources in ["cds_config", "lds_config"] {
        let expected = json!({"resource_api_version": "V3", "ads": {}});
        assert_eq!(at(&all, &format!("/dynamic_resources/{resources}")), &expected);
    }
    let clusters = at(&all, "/static_resources/clusters").as_array().unwrap();
    let [cluster] = &clusters[..] else { panic!("{clusters:?}") };
    assert_eq!(cluster["name"], "rouse_xds");
    let http = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let alive =
        at(cluster, &format!("{http}/explicit_http_config/http2_protocol_options/connection_keepalive"));
    assert_eq!(alive, &json!({"interval": "10s", "timeout": "5s"}), "HTTP/2, with pings");
}

fn listener() {
    const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let all = printed(LOCAL);
    let address = "/static_resources/listeners/0/address/socket_address";
    assert_eq!(at(&all, address), &json!({"address": "127.0.0.1", "port_value": 10000}));
    let manager = at(&all, MANAGER);
    assert_eq!(at(manager, "/rds/route_config_name"), "rouse", "the name that Rouse publishes");
    assert_eq!(at(manager, "/rds/config_source/ads"), &json!({}));
    assert_eq!(manager["use_remote_address"], true);
    assert_eq!(manager["stream_idle_timeout"], "3600s");
    assert_eq!(manager["upgrade_configs"], json!([{"upgrade_type": "websocket"}]));
    assert!(!all.to_string().contains("retry"), "a retry could send a request twice");
    let everywhere = printed(&format!("{LOCAL} --listen [::]:8080 --envoy-admin 127.0.0.2:1"));
    assert_eq!(at(&everywhere, address), &json!({"address": "::", "port_value": 8080}));
    assert_eq!(at(&everywhere, "/admin/address/socket_address/address"), "127.0.0.2");
    let none = printed(&format!("{LOCAL} --listen none"));
    assert_eq!(none.pointer("/static_resources/listeners"), None);
}

/// The type of the cluster, and the addresses of its endpoints.
fn reached(all: &Value) -> (String, Vec<String>) {
    let cluster = at(all, "/static_resources/clusters/0");
    let endpoints = at(cluster, "/load_assignment/endpoints/0/lb_endpoints").as_array().unwrap();
    let address = |endpoint: &Value| {
        let address = at(endpoint, "/endpoint/address/socket_address");
        format!("{} {}", address["address"].as_str().unwrap(), address["port_value"])
    };
    (cluster["type"].as_str().unwrap().to_owned(), endpoints.iter().map(address).collect())
}

fn servers() {
    for (servers, kind, expected) in [
        ("--server 127.0.0.1:18001", "STATIC", &["127.0.0.1 18001"][..]),
        ("--server 10.0.0.7 --server [fd00::7]:9", "STATIC", &["10.0.0.7 18000", "fd00::7 9"]),
        ("--server localhost:1", "STRICT_DNS", &["localhost 1"]),
        ("--server a.example.com --server 10.0.0.7:2", "STRICT_DNS", &["a.example.com 18000", "10.0.0.7 2"]),
    ] {
        let (found, addresses) = reached(&printed(servers));
        assert_eq!(
            (found.as_str(), &addresses[..]),
            (kind, &expected.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..])
        );
    }
}

fn certificates() {
    const SOCKET: &str = "/static_resources/clusters/0/transport_socket/typed_config";
    assert_eq!(printed(LOCAL).pointer(SOCKET), None);
    let servers = "--server b.example.com --server a.example.com --server 10.0.0.7 --server a.example.com:2";
    let all = printed(&format!("{servers} --ca /c/ca.crt --cert /c/tls.crt --key /c/tls.key"));
    let socket = at(&all, SOCKET);
    assert_eq!(socket["sni"], "b.example.com");
    let common = at(socket, "/common_tls_context");
    assert_eq!(common["alpn_protocols"], json!(["h2"]));
    assert_eq!(at(common, "/validation_context/trusted_ca/filename"), "/c/ca.crt");
    let name = |kind: &str, name: &str| json!({"san_type": kind, "matcher": {"exact": name}});
    let names =
        json!([name("DNS", "a.example.com"), name("DNS", "b.example.com"), name("IP_ADDRESS", "10.0.0.7")]);
    assert_eq!(at(common, "/validation_context/match_typed_subject_alt_names"), &names, "each once");
    let own =
        json!([{"certificate_chain": {"filename": "/c/tls.crt"}, "private_key": {"filename": "/c/tls.key"}}]);
    assert_eq!(common["tls_certificates"], own);
    let verified = printed(&format!("{LOCAL} --ca ca.crt"));
    let socket = at(&verified, SOCKET);
    assert!(
        socket.get("sni").is_none() && at(socket, "/common_tls_context").get("tls_certificates").is_none()
    );
}

fn text() {
    let arguments = format!("{LOCAL} --ca ca.crt --listen 0.0.0.0:80");
    assert_eq!(bootstrap(&arguments).out, bootstrap(&arguments).out);
    assert!(
        bootstrap(LOCAL).out.starts_with("# Envoy gets clusters, endpoints, routes and listeners from Rouse")
    );
    let odd = "a\"b\\c:{d}#é";
    let all = printed(&format!("{LOCAL} --ca {odd}"));
    let ca = "/static_resources/clusters/0/transport_socket/typed_config/common_tls_context/validation_context/trusted_ca/filename";
    assert_eq!(at(&all, ca), odd);
}

fn warning() {
    for (arguments, warned) in [
        (LOCAL, None),
        ("--server localhost", None),
        ("--server [::1]:1", None),
        ("--server 10.0.0.7 --ca ca.crt", None),
        ("--server 127.0.0.1 --server 10.0.0.7", Some("from 10.0.0.7:18000 in plain text")),
        ("--server rouse-xds.edge.svc:9", Some("from rouse-xds.edge.svc:9 in plain text")),
    ] {
        let err = bootstrap(arguments).err;
        match warned {
            None => assert_eq!(err, "", "{arguments}"),
            Some(part) => assert!(err.starts_with("warning:") && err.contains(part), "{arguments}: {err}"),
        }
    }
}

fn refusals() {
    for (arguments, part) in [
        ("", "--server <ADDRESS>"),
        ("--server fd00::7", "expected HOST or HOST:PORT with a port from 1 to 65535"),
        ("--server a:0", "expected HOST or HOST:PORT"),
        ("--server http://a:1", "expected HOST or HOST:PORT"),
        ("--server 0.0.0.0:18000", "is where a server listens"),
        (&format!("{LOCAL} --listen 8080"), "expected an address with a port"),
        (&format!("{LOCAL} --envoy-admin 0.0.0.0:9901"), "Envoy's admin API has no authentication"),
        (&format!("{LOCAL} --cert a"), "--ca"),
        (&format!("{LOCAL} --ca a --key b"), "--cert"),
        (&format!("{LOCAL} --node-id é"), "printable ASCII"),
        (&format!("{LOCAL} --xds-listen 127.0.0.1:1"), "unexpected argument"),
    ] {
        let answer = bootstrap(arguments);
        assert_eq!(answer.code, 2, "{arguments}: {}", answer.out);
        assert!(answer.err.contains(part) && answer.out.is_empty(), "{arguments}: {}", answer.err);
    }
}

fn validate() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let authority = Authority::new();
    let leaf = authority.leaf(&["envoy.edge.svc"]);
    fs::write(file("ca.crt"), authority.pem()).unwrap();
    fs::write(file("tls.crt"), &leaf.chain).unwrap();
    fs::write(file("tls.key"), &leaf.key).unwrap();
    let of = |name: &str| file(name).display().to_string();
    let (ca, own) =
        (format!("--ca {}", of("ca.crt")), format!("--cert {} --key {}", of("tls.crt"), of("tls.key")));
    let names = "--server a.example.com --server [fd00::7]:9 --server 10.0.0.7";
    for arguments in [
        LOCAL.to_owned(),
        format!("{LOCAL} --listen none --node-id edge/1"),
        format!("{names} --listen [::]:8080"),
        format!("{names} {ca}"),
        format!("--server 10.0.0.7 {ca} {own}"),
        format!("{names} {ca} {own} --envoy-admin [::1]:0"),
    ] {
        let path = file("envoy.yaml");
        fs::write(&path, bootstrap(&arguments).out).unwrap();
        is_valid(&path, &arguments);
    }
    // The check can fail: Envoy reads the file, and refuses what it does not know.
    let broken = bootstrap(LOCAL).out.replace("stream_idle_timeout", "stream_idle_timeouts");
    fs::write(file("broken.yaml"), broken).unwrap();
    assert!(!run(&file("broken.yaml")).0);
}

fn is_valid(path: &Path, arguments: &str) {
    let (valid, said) = run(path);
    assert!(valid, "{arguments}: {said}\n{}", fs::read_to_string(path).unwrap());
}

fn run(path: &Path) -> (bool, String) {
    let mut envoy = Command::new(binary().unwrap());
    let output =
        envoy.args(["--mode", "validate", "--log-level", "warning", "-c"]).arg(path).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}
