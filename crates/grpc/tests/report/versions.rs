//! Versions that are one minor apart work together: what one does not know, it ignores.

use prost::Message as _;
use rouse_core::load_meter::LoadKey;

use crate::harness::{Controller, Gateway, Scripted, cart, hello, load, scene, token};
use crate::network::Network;
use crate::proto::reporter_message::Kind;
use crate::proto::{Hello, Load, Loads, ReporterMessage};

/// A field that no version knows yet: number 2000, with text.
fn unknown_field() -> Vec<u8> {
    let mut field = vec![0x82, 0x7d, 4];
    field.extend_from_slice(b"new!");
    field
}

#[tokio::test(start_paused = true)]
async fn an_older_hello_is_accepted() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let stream = Scripted::open(&network, &token("gateway-1")).await.unwrap();
    stream.send(Kind::Hello(Hello::default())).await;
    stream
        .send(Kind::Loads(Loads { complete: true, loads: vec![load("cart", 1, 1)], ..Loads::default() }))
        .await;
    controller.sink.until("it reports", |sink| sink.present(&LoadKey::Service(cart())) == 1).await;
    assert_eq!(controller.server.connected()[0].greeting.version, "");
}

#[tokio::test(start_paused = true)]
async fn kinds_of_messages_and_keys_that_a_controller_does_not_know_are_ignored() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let stream = Scripted::open(&network, &token("gateway-1")).await.unwrap();
    stream.send_unknown().await;
    // An unknown role, and a version that is long and has a line end.
    let newer = Hello { role: 99, version: format!("9\n{}", "x".repeat(1000)), ..hello() };
    stream.send(Kind::Hello(newer)).await;
    stream.send_unknown().await;
    let strange = Load { key: None, requests: 5, in_flight: 5, ..Load::default() };
    let state = Loads { complete: true, loads: vec![strange, load("cart", 1, 1)], ..Loads::default() };
    stream.send(Kind::Loads(state)).await;
    stream.send_unknown().await;
    controller.sink.until("it reports", |sink| sink.present(&LoadKey::Service(cart())) == 1).await;
    assert_eq!(controller.sink.updates("gateway-1")[0].samples.len(), 1);
    let version = &controller.server.connected()[0].greeting.version;
    assert_eq!((version.len(), version.contains('\n')), (64, false), "{version}");
}

#[test]
fn unknown_fields_change_nothing() {
    let message = ReporterMessage { kind: Some(Kind::Hello(hello())) };
    let mut bytes = message.encode_to_vec();
    bytes.extend_from_slice(&unknown_field());
    assert_eq!(ReporterMessage::decode(&*bytes).unwrap(), message);
    // Inside of a reading, too.
    let mut reading = load("cart", 1, 1).encode_to_vec();
    reading.extend_from_slice(&unknown_field());
    assert_eq!(Load::decode(&*reading).unwrap(), load("cart", 1, 1));
}

#[test]
fn an_envoy_on_the_wire_is_what_the_contract_says() {
    let mut bytes =
        vec![0x12, 28, 0x32, 26, 0x0a, 1, b's', 0x12, 1, b'n', 0x18, 2, 0x20, 0xc0, 0x84, 0x3d, 0x28, 1];
    bytes.extend_from_slice(&[0x32, 10]);
    bytes.extend_from_slice(b"shop/carts");
    let envoy = crate::proto::Envoy {
        san: "s".into(),
        node: "n".into(),
        state: crate::proto::EnvoyState::Silent.into(),
        silent_micros: 1_000_000,
        all_services: true,
        services: vec!["shop/carts".into()],
    };
    let message =
        ReporterMessage { kind: Some(Kind::Loads(Loads { envoys: vec![envoy], ..Loads::default() })) };
    assert_eq!((ReporterMessage::decode(&bytes[..]).unwrap(), message.encode_to_vec()), (message, bytes));
}

/// The bytes of version 0.2 of the protocol, written by hand from `report.proto`: field numbers and types never change.
#[test]
fn the_wire_is_what_the_contract_says() {
    let hello = [0x0a, 16, 0x0a, 3, b'0', b'.', b'2', 0x11, 7, 0, 0, 0, 0, 0, 0, 0x80, 0x18, 1];
    let expected = Hello { version: "0.2".into(), boot: 0x8000_0000_0000_0007, role: 1 };
    let message = ReporterMessage { kind: Some(Kind::Hello(expected)) };
    assert_eq!(
        (ReporterMessage::decode(&hello[..]).unwrap(), message.encode_to_vec()),
        (message, hello.to_vec())
    );

    let mut loads = vec![0x12, 55, 0x08, 0xc0, 0x84, 0x3d, 0x10, 1, 0x18, 1];
    loads.extend_from_slice(&[0x22, 22, 0x0a, 9]);
    loads.extend_from_slice(b"shop/cart");
    loads.extend_from_slice(&[0x18, 5, 0x20, 0x90, 0x4e, 0x28, 2, 0x30, 3, 0x38, 0x64]);
    loads.extend_from_slice(&[0x22, 6, 0x12, 4, b'r', b'o', b'a', b'd']);
    loads.extend_from_slice(&[0x2a, 13, 0x0a, 9]);
    loads.extend_from_slice(b"shop/cart");
    loads.extend_from_slice(&[0x10, 4]);
    let reading = Load { busy_micros: 10_000, held: 3, age_micros: 100, ..load("cart", 5, 2) };
    let route = Load { key: Some(crate::proto::load::Key::Route("road".into())), ..Load::default() };
    let state = Loads {
        sent_at_micros: 1_000_000,
        complete: true,
        continues: true,
        loads: vec![reading, route],
        parked: vec![crate::proto::Parked { service: "shop/cart".into(), id: 4 }],
        envoys: Vec::new(),
    };
    let message = ReporterMessage { kind: Some(Kind::Loads(state)) };
    assert_eq!((ReporterMessage::decode(&loads[..]).unwrap(), message.encode_to_vec()), (message, loads));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_ignores_what_it_does_not_know_of_a_controller() {
    // It has no use for these commands either.
    let (network, controllers) = scene(1);
    let gateway = Gateway::start(&network, "gateway-1");
    controllers[0].sink.until("it reports", |sink| !sink.updates("gateway-1").is_empty()).await;
    controllers[0].server.prepare_zero(&cart(), 1);
    controllers[0].server.cancel_zero(&cart(), 1);
    let before = controllers[0].sink.updates("gateway-1").len();
    controllers[0].sink.until("it goes on", |sink| sink.updates("gateway-1").len() > before + 3).await;
    assert_eq!(controllers[0].results("left") + controllers[0].results("broken"), 0);
    gateway.stop().await;
}
