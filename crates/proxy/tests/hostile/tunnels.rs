//! Requests for upgrades that try to smuggle other requests.

use crate::kit::{Attacker, SMUGGLED, scene_with_honest};
use crate::rig::Options;

/// The guard does not check bytes after an upgrade request, so they must not be treated as a request.
#[tokio::test]
async fn nothing_follows_an_upgrade_that_the_pod_refused() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for upgrade in ["websocket", "rot13", "websocket, rot13"] {
        let head = format!(
            "GET /tunnel HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        );
        for together in [true, false] {
            let mut attacker = Attacker::new(&rig).await;
            if together {
                attacker.send(format!("{head}{SMUGGLED}")).await;
            } else {
                attacker.send(&head).await;
                honest.is_served().await;
                attacker.send(SMUGGLED).await;
            }
            let answer = attacker.rest().await;
            assert!(answer.len() < 10 || answer.contains("\r\nconnection: close\r\n"), "{answer}");
            assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{answer}");
            honest.is_served().await;
        }
    }
    assert_eq!(recording_pod.count("GET /tunnel "), 6);
    recording_pod.is_clean();
}

#[tokio::test]
async fn h2c_does_not_tunnel_through() {
    let (rig, recording_pod, mut honest) = scene_with_honest(Options::default()).await;
    for upgrade in ["h2c", "H2C", "websocket, h2c", "h2c/1"] {
        let request = format!(
            "GET /h2c HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\n\
                 HTTP2-Settings: smuggled\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\nsmuggled"
        );
        let answer = Attacker::exchange(&rig, request).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("HTTP/1.1 400 ") && !answer.contains(" 101 "), "{answer}");
        honest.is_served().await;
    }
    assert_eq!(recording_pod.count("GET /h2c "), 4);
    assert_eq!(recording_pod.count("upgrade"), 0, "{:?}", recording_pod.seen());
    assert_eq!(recording_pod.count("PRI "), 0);
    recording_pod.is_clean();
}
