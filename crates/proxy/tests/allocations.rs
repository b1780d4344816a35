//! Counts the allocations of a warm request, and fails if they increase.
//!
//! It is the only test of its process, since all allocations of the process are counted; client and pod do not allocate.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests")]

use std::alloc::System;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use rouse_proxy::upstream::Timeouts;
use rouse_testkit::fakes::READY;
use rouse_testkit::proxy::rig::{Options, PATIENCE, Rig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUESTS: usize = 1000;
/// The allocations of hyper on both sides, of its header maps, and of our code. Lower it after an improvement.
const ALLOWED: usize = 18;

const REQUEST: &[u8] =
    b"GET /path?query HTTP/1.1\r\nHost: cart.test\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n";
const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nServer: test\r\nContent-Length: 5\r\n\r\nhello";

/// Answers each request on one connection.
fn pod(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {
        stream.write_all(RESPONSE).unwrap();
    }
}

fn ask(stream: &mut TcpStream, times: usize) {
    let mut buffer = [0; 4096];
    for _ in 0..times {
        stream.write_all(REQUEST).unwrap();
        let mut length = 0;
        while !buffer[..length].ends_with(b"hello") {
            let read = stream.read(&mut buffer[length..]).unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&buffer[..length]));
            length += read;
        }
    }
}

// The gateway has threads of its own, so this one may block.
#[tokio::test]
async fn a_warm_request_allocates_only_so_often() {
    let timeouts = Timeouts { request: Some(PATIENCE), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rig.slices(&[(1, listener.local_addr().unwrap(), READY)]);
    thread::spawn(move || pod(&listener));
    let mut stream = TcpStream::connect(rig.address).unwrap();
    stream.set_nodelay(true).unwrap();
    ask(&mut stream, 100);
    let region = Region::new(ALLOCATOR);
    ask(&mut stream, REQUESTS);
    let counted = region.change();
    let each = (counted.allocations + counted.reallocations) / REQUESTS;
    println!("{each} allocations and {} bytes for each request", counted.bytes_allocated / REQUESTS);
    assert!(each <= ALLOWED, "{each} allocations for each request");
    assert!(each > 5, "the count is not of the gateway");
}
