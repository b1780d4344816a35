//! Fuzzes the decoder for responses of a pod's gRPC health service.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_net::probe::grpc_health_proto::decode;

fuzz_target!(|body: &[u8]| {
    // A frame has a head of five bytes; a shorter body is never a response.
    assert!(decode(body).is_err() || body.len() >= 5);
});
