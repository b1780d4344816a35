//! Listening on real sockets, and the errors when an address is not available.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::net::{SocketAddr, TcpStream};

use rouse_net::listen::bind;
use socket2::{Domain, Socket, Type};

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// An address that no other test can get while the socket is kept, and on which nothing listens yet.
fn reserve(address: &str) -> (Socket, SocketAddr) {
    let address: SocketAddr = address.parse().unwrap();
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[test]
fn port_zero_gets_a_real_port_that_accepts() {
    let listeners = bind(&[any_port(), any_port()]).unwrap();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.address().port()).collect();
    assert!(ports[0] != 0 && ports[1] != 0 && ports[0] != ports[1]);
    for listener in listeners {
        TcpStream::connect(listener.address()).unwrap();
    }
}

#[test]
fn a_shared_listener_outlives_the_first_and_keeps_its_queue() {
    let listener = bind(&[any_port()]).unwrap().remove(0);
    let (address, share) = (listener.address(), listener.share().unwrap());
    let _waiting = TcpStream::connect(address).unwrap();
    drop(listener);
    let share = share.into_std();
    share.set_nonblocking(false).unwrap();
    share.accept().unwrap();
}

#[test]
fn all_addresses_are_bound_or_none() {
    let taken = bind(&[any_port()]).unwrap().remove(0);
    let (_reserved, free) = reserve("127.0.0.1:0");
    let error = bind(&[free, taken.address()]).unwrap_err();
    assert_eq!(error.address, taken.address());
    assert_eq!(bind(&[free]).unwrap()[0].address(), free, "the first one was given back");
}

#[test]
fn an_address_asked_for_twice_is_said_to_be_our_own() {
    let taken = bind(&[any_port()]).unwrap().remove(0);
    let text = bind(&[taken.address()]).unwrap_err().to_string();
    assert!(text.starts_with(&format!("cannot listen on {}: ", taken.address())), "{text}");
    let us = format!("; this process itself (pid {}) listens there", std::process::id());
    assert!(!cfg!(target_os = "linux") || text.ends_with(&us), "{text}");
}

#[test]
fn every_address_and_every_ipv6_address_can_be_listened_on_together() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: this machine has no IPv6");
        return;
    }
    let (_reserved, all) = reserve("[::]:0");
    let port = all.port();
    let alone = bind(&[all]).unwrap();
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    drop(alone);
    let both: Vec<SocketAddr> = [format!("0.0.0.0:{port}"), format!("[::]:{port}")]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    assert_eq!(bind(&both).unwrap().len(), 2);
}

#[test]
fn an_address_of_another_machine_is_said_to_be_so() {
    let text = bind(&["192.0.2.1:0".parse().unwrap()]).unwrap_err().to_string();
    assert!(text.contains("no interface of this machine has this address"), "{text}");
}
