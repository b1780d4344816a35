//! Clients of Envoy.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use rouse_testkit::envoy::get;

/// Enough that each of a few endpoints gets one: with three, one in ten million runs misses one.
const REQUESTS: usize = 40;

/// The status and the body of one GET.
pub(crate) async fn ask(envoy: SocketAddr, host: &str, path: &str) -> (u16, String) {
    let answer = get(envoy, host, path, &[]).await.unwrap();
    (answer.status().as_u16(), String::from_utf8_lossy(answer.body()).into_owned())
}

/// The addresses that answered [`REQUESTS`] requests; empty if Envoy has no endpoint for any of them. It is one or the other: all
/// requests are answered, or none.
pub(crate) async fn who_answers(envoy: SocketAddr, host: &str) -> BTreeSet<SocketAddr> {
    let (mut answered, mut refused) = (BTreeSet::new(), 0);
    for number in 0..REQUESTS {
        match ask(envoy, host, "/").await {
            (200, address) => _ = answered.insert(address.parse().unwrap()),
            (503, body) if body == "no healthy upstream" => refused += 1,
            (status, body) => panic!("request {number} to {host}: {status} {body}"),
        }
    }
    let expected = if answered.is_empty() { REQUESTS } else { 0 };
    assert_eq!(refused, expected, "requests to {host} that no endpoint took, beside {answered:?}");
    answered
}
