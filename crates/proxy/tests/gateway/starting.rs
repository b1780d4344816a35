//! Responses of a gateway that does not know its routes yet.

use rouse_proxy::routing::{NoPodPolicy, RouteTable, Target};
use rouse_proxy::upstream::Timeouts;

use crate::rig::{Options, Rig, backend, rule};

#[tokio::test]
async fn a_gateway_without_its_routes_says_that_it_starts_and_not_that_there_is_none() {
    let rig = Rig::new(Options { starting: true, ..Options::default() });
    let answer = rig.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: starting\r\n"), "{answer}");
    assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    // Known to be empty: that is another response.
    rig.gateway.set_routes(RouteTable::new(Vec::new()));
    let answer = rig.get("/").await;
    assert!(answer.contains("\r\nx-rouse-error: no_route\r\n"), "{answer}");
    let target = Target::Backend(backend(&rig.service, rouse_proxy::upstream::UpstreamProtocol::Http1));
    let timeouts = Timeouts { readiness: Some(std::time::Duration::ZERO), ..Timeouts::default() };
    rig.route(rule("cart", target, timeouts, NoPodPolicy::default()));
    let answer = rig.get("/").await;
    assert!(answer.contains("\r\nx-rouse-error: readiness_timeout\r\n"), "{answer}");
}
