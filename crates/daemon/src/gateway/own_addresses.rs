//! Finds the addresses of this gateway itself. No request is forwarded to them: that would be a loop.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The addresses of `listeners`. A listener on all addresses counts at each outgoing address of this machine or pod.
pub(super) fn sockets(listeners: &[SocketAddr]) -> Vec<SocketAddr> {
    let outside: Vec<IpAddr> = outside().collect();
    let mut all = Vec::new();
    for listener in listeners {
        if listener.ip().to_canonical().is_unspecified() {
            // A listener on `[::]` also accepts IPv4.
            all.extend(outside.iter().map(|ip| SocketAddr::new(*ip, listener.port())));
        } else {
            all.push(*listener);
        }
    }
    all
}

/// The source address of each family for packets to other networks. Connecting a UDP socket sends nothing: it only looks up the
/// route. The destinations are addresses reserved for documentation.
fn outside() -> impl Iterator<Item = IpAddr> {
    let documentation = [
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))),
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))),
    ];
    documentation.into_iter().filter_map(|(here, there)| {
        let socket = UdpSocket::bind((here, 0)).ok()?;
        socket.connect((there, 9)).ok()?;
        let own = socket.local_addr().ok()?.ip();
        (!own.is_unspecified()).then_some(own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_where_it_says_and_one_on_all_addresses_is_at_those_that_lead_outside() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(
            sockets(&[at("10.0.0.7:9090"), at("[fd00::7]:9090")]),
            [at("10.0.0.7:9090"), at("[fd00::7]:9090")]
        );
        // Without a way outside there is none.
        for everywhere in ["0.0.0.0:8080", "[::]:8080", "[::ffff:0.0.0.0]:8080"] {
            let all = sockets(&[at(everywhere)]);
            assert!(all.iter().all(|own| own.port() == 8080 && !own.ip().is_unspecified()), "{all:?}");
        }
    }
}
