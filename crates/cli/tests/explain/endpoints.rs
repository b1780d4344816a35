//! The output of `rouse explain endpoints`.

use serde_json::{Value, json};

use crate::{command, list, rouse, yaml};

/// A slice of `shop/cart` with one port and these endpoints.
fn slice(name: &str, port: u16, endpoints: impl Into<Value>) -> Value {
    let endpoints = endpoints.into();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "cart"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": port}],
    })
}

fn endpoint(ip: &str, uid: &str, conditions: impl Into<Value>) -> Value {
    let conditions = conditions.into();
    let target = json!({"kind": "Pod", "name": uid, "uid": uid});
    json!({"addresses": [ip], "conditions": conditions, "targetRef": target})
}

fn explained(objects: Vec<Value>) -> Value {
    rouse("explain endpoints -o json", list(objects).to_string()).json()
}

/// Address, state and reason of every row of the first port.
fn rows(answer: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let endpoints = answer["services"][0]["ports"][0]["endpoints"].as_array().unwrap();
    endpoints.iter().map(|e| (text(&e["address"]), text(&e["state"]), text(&e["why"]))).collect()
}

#[test]
fn the_shipped_rolling_update_reads_as_the_readme_says() {
    let answer = rouse("explain endpoints -f examples/rolling-update.yaml", "");
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let expected = "\
shop/cart
  port http: 2 Ready, 1 Draining, 1 Starting, 1 Gone
    ADDRESS               POD              STATE     ENVOY     NEW  WHY
    10.1.0.11:8080        shop/cart-old-1  Draining  DRAINING  no   Terminating but still serving; another endpoint is Ready, so it only finishes its work.
    10.1.0.12:8080        shop/cart-old-2  Gone      -         no   Terminating and no longer serving: it gets no traffic any more.
    10.1.0.13:8080        shop/cart-old-3  Ready     HEALTHY   yes  Ready: it takes new requests.
    10.1.0.21:9090        shop/cart-new-1  Ready     HEALTHY   yes  Ready: it takes new requests.
    10.1.0.22:9090        shop/cart-new-2  Starting  -         no   Not ready and not serving: it gets no traffic yet (serving is absent, read as ready; terminating is absent, read as false).
    [fd00:10:1::21]:9090  shop/cart-new-1  Ready     HEALTHY   yes  Ready: it takes new requests.
  port metrics: 1 Ready, 1 Starting
    ADDRESS         POD              STATE     ENVOY     NEW  WHY
    10.1.0.21:9100  shop/cart-new-1  Ready     HEALTHY   yes  Ready: it takes new requests.
    10.1.0.22:9100  shop/cart-new-2  Starting  -         no   Not ready and not serving: it gets no traffic yet (serving is absent, read as ready; terminating is absent, read as false).

shop/checkout
  port grpc: 1 Draining
    ADDRESS          POD              STATE     ENVOY     NEW  WHY
    10.1.0.31:50051  shop/checkout-1  Draining  HEALTHY   yes  Terminating but still serving; no endpoint is Ready, so it still takes new requests.
";
    assert_eq!(answer.out, expected);
}

#[test]
fn the_json_has_exactly_the_promised_fields() {
    let objects = vec![slice(
        "a",
        8080,
        json!([endpoint("10.0.0.1", "p", json!({"ready": true})), {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}]),
    )];
    let expected = json!({"services": [{"service": "shop/cart", "ports": [{"port": "http", "endpoints": [
        {
            "address": "10.0.0.1:8080", "pod": "shop/p", "state": "Ready", "envoy": "HEALTHY", "new_traffic": true,
            "why": "Ready: it takes new requests.",
        },
        {
            "address": "10.0.0.2:8080", "pod": null, "state": "Starting", "envoy": null, "new_traffic": false,
            "why": "Not ready and not serving: it gets no traffic yet (serving is absent, read as ready; terminating \
                    is absent, read as false). It has no pod: it counts only where manual endpoints are allowed.",
        },
    ]}]}]});
    assert_eq!(explained(objects), expected);
}

#[test]
fn the_same_address_twice_is_one_row() {
    let (ready, leaving) =
        (json!({"ready": true}), json!({"ready": false, "serving": true, "terminating": true}));
    let check = |uids: [&str; 2], expected: (&str, &str)| {
        let first = slice("a", 8080, json!([endpoint("10.0.0.1", uids[0], ready.clone())]));
        let second = slice("b", 8080, json!([endpoint("10.0.0.1", uids[1], leaving.clone())]));
        let rows = rows(&explained(vec![first, second]));
        let [(address, state, why)] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((address.as_str(), state.as_str()), ("10.0.0.1:8080", expected.0));
        assert!(why.contains(expected.1), "{why}");
    };
    check(["p", "p"], ("Draining", "listed 2 times: terminating wins"));
    check(["p", "q"], ("Ready", "listed 2 times: the better state wins"));
}

#[test]
fn one_port_name_may_have_another_number_in_another_slice() {
    let first = slice("a", 8080, json!([endpoint("10.0.0.1", "p", json!({}))]));
    let second = slice("b", 9090, json!([endpoint("10.0.0.2", "q", json!({}))]));
    let addresses: Vec<String> = rows(&explained(vec![first, second])).into_iter().map(|row| row.0).collect();
    assert_eq!(addresses, ["10.0.0.1:8080", "10.0.0.2:9090"]);
}

#[test]
fn a_dual_stack_pod_is_one_endpoint_with_two_addresses() {
    let first =
        slice("a", 80, json!([endpoint("10.0.0.1", "p", json!({})), endpoint("10.0.0.2", "q", json!({}))]));
    let mut second =
        slice("b", 80, json!([endpoint("fd00::2", "q", json!({})), endpoint("fd00::1", "p", json!({}))]));
    second["addressType"] = "IPv6".into();
    let objects = vec![first, second];
    let text = rouse("explain endpoints", list(objects.clone()).to_string()).out;
    assert!(text.contains("port http: 2 Ready\n"), "{text}");
    let addresses: Vec<String> = rows(&explained(objects)).into_iter().map(|row| row.0).collect();
    assert_eq!(addresses, ["10.0.0.1:80", "10.0.0.2:80", "[fd00::2]:80", "[fd00::1]:80"]);
}

#[test]
fn a_slice_that_is_there_twice_counts_once_as_last_written() {
    let early = slice("a", 80, json!([endpoint("10.0.0.1", "p", json!({"ready": true}))]));
    let other = slice("b", 80, json!([endpoint("10.0.0.2", "q", json!({"ready": true}))]));
    let late = slice("a", 80, json!([endpoint("10.0.0.1", "p", json!({"ready": false}))]));
    let answer = rouse("explain endpoints -o json", list(vec![early, other, late]).to_string());
    let states: Vec<String> = rows(&answer.json()).into_iter().map(|row| row.1).collect();
    assert_eq!(states, ["Starting", "Ready"]);
    assert!(
        answer.err.contains("EndpointSlice shop/a appears twice; the later one counts"),
        "{}",
        answer.err
    );
}

#[test]
fn many_small_slices_take_no_longer_than_a_few_large_ones() {
    let object = |i: usize| {
        slice(
            &format!("s{i}"),
            80,
            json!([endpoint(&format!("10.0.{}.{}", i / 250, i % 250), &format!("p{i}"), json!({}))]),
        )
    };
    let answer = explained((0..20_000).map(object).collect());
    assert_eq!(rows(&answer).len(), 20_000);
}

#[test]
fn only_tcp_ports_with_a_number_count_and_the_unnamed_port_is_empty() {
    let mut object = slice("a", 1, json!([endpoint("10.0.0.1", "p", json!({}))]));
    object["ports"] = json!([
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "any", "protocol": "TCP"},
        {"port": 80},
        {"name": "grpc", "port": 81, "protocol": "TCP"},
    ]);
    let answer = explained(vec![object]);
    let ports = answer["services"][0]["ports"].as_array().unwrap();
    let names: Vec<&str> = ports.iter().map(|port| port["port"].as_str().unwrap()).collect();
    assert_eq!(names, ["", "grpc"]);
}

#[test]
fn what_cannot_be_routed_to_is_left_out_with_a_warning() {
    let mut fqdn = slice("names", 80, json!([{"addresses": ["example.com"]}]));
    fqdn["addressType"] = "FQDN".into();
    let mut again = fqdn.clone();
    again["metadata"]["name"] = "names-2".into();
    let odd = slice(
        "odd",
        80,
        json!([
            {"addresses": ["10.0.0.256"]}, {"addresses": []}, {"addresses": ["fd00::1"]}, {"addresses": ["10.0.0.9"]},
        ]),
    );
    let mut homeless = slice("homeless", 80, json!([]));
    homeless["metadata"]["labels"] = json!({});
    let answer = rouse("explain endpoints -o json", list(vec![fqdn, again, odd, homeless]).to_string());
    let addresses: Vec<String> = rows(&answer.json()).into_iter().map(|row| row.0).collect();
    assert_eq!(addresses, ["10.0.0.9:80"]);
    assert_eq!(answer.err.matches("FQDN slices are ignored").count(), 1, "{}", answer.err);
    answer.complains(&[
        "warning: service shop/cart: FQDN slices are ignored",
        "warning: EndpointSlice shop/odd: endpoints[0].addresses[0] is \"10.0.0.256\", not an IPv4 address",
        "warning: EndpointSlice shop/odd: endpoints[1] has no address",
        "warning: EndpointSlice shop/odd: endpoints[2].addresses[0] is \"fd00::1\"",
        "warning: EndpointSlice shop/homeless belongs to no service",
    ]);
}

#[test]
fn a_target_that_is_no_pod_with_a_uid_is_no_pod() {
    let target = |target: Value| json!({"addresses": ["10.0.0.1"], "targetRef": target});
    for none in
        [json!({"kind": "Node", "name": "n", "uid": "u"}), json!({"kind": "Pod", "name": "p"}), json!(null)]
    {
        let answer = explained(vec![slice("a", 80, json!([target(none)]))]);
        assert_eq!(answer["services"][0]["ports"][0]["endpoints"][0]["pod"], Value::Null);
    }
}

#[test]
fn a_service_without_slices_is_shown_with_its_ports_and_what_kind_it_is() {
    let service = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}, "spec": spec});
    let ports = json!([{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    let objects = list(vec![
        service("plain", json!({"selector": {"a": "b"}, "ports": ports, "sessionAffinity": "ClientIP"})),
        service("headless", json!({"clusterIP": "None", "ports": ports})),
        service("elsewhere", json!({"type": "ExternalName", "externalName": "example.com"})),
    ]);
    let text = rouse("explain endpoints", objects.to_string());
    text.prints(&[
        "shop/plain\n  sessionAffinity: ClientIP is not honoured",
        "shop/headless\n  Headless Service",
        "  No selector: its endpoints count as manual",
        "  port http: no endpoints\n",
        "shop/elsewhere\n  ExternalName Service: routes to it are refused.\n",
    ]);
    assert!(!text.out.contains("dns"), "{}", text.out);
    let json = rouse("explain endpoints -o json", yaml(&objects)).json();
    assert_eq!(
        json["services"][0],
        json!({"service": "shop/plain", "ports": [{"port": "http", "endpoints": []}]})
    );
    assert_eq!(json["services"][2], json!({"service": "shop/elsewhere", "ports": []}));
}

#[test]
fn services_and_ports_keep_the_order_of_their_first_appearance() {
    let named = |service: &str, port: &str, name: &str| {
        let mut object = slice(name, 80, json!([]));
        object["metadata"]["labels"]["kubernetes.io/service-name"] = service.into();
        object["ports"][0]["name"] = port.into();
        object
    };
    let answer = explained(vec![
        named("z", "b", "1"),
        named("a", "x", "2"),
        named("z", "a", "3"),
        named("z", "b", "4"),
    ]);
    let order: Vec<String> = answer["services"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(
        order,
        [
            r#"{"ports":[{"endpoints":[],"port":"b"},{"endpoints":[],"port":"a"}],"service":"shop/z"}"#,
            r#"{"ports":[{"endpoints":[],"port":"x"}],"service":"shop/a"}"#,
        ]
    );
}

#[test]
fn a_pipe_sees_no_colours_and_a_name_cannot_move_the_cursor() {
    let mut object = slice("a", 80, json!([endpoint("10.0.0.1", "p", json!({}))]));
    object["endpoints"][0]["targetRef"]["name"] = "evil\u{1b}[2J\nname".into();
    let answer = rouse("explain endpoints", list(vec![object]).to_string());
    assert!(!answer.out.contains('\u{1b}'), "{:?}", answer.out);
    assert!(answer.out.contains(r"shop/evil\u{1b}[2J\nname"), "{:?}", answer.out);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let endpoints: Vec<Value> = (0..5000)
        .map(|i| endpoint(&format!("10.0.{}.{}", i / 250, i % 250), &format!("p{i}"), json!({})))
        .collect();
    let input = list(vec![slice("a", 80, endpoints)]).to_string();
    for output in ["text", "json"] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &input).unwrap();
        let arguments = format!("explain endpoints -o {output} -f {}", file.path().display());
        let mut child = command(&arguments).spawn().unwrap();
        drop(child.stdout.take());
        let end = child.wait_with_output().unwrap();
        assert_eq!((end.status.code(), String::from_utf8(end.stderr).unwrap().as_str()), (Some(0), ""));
    }
}
