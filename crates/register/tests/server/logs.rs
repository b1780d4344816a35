//! What the server logs about refusals, and what it never logs.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use rouse_net::auth::{ClaimError, ClaimGrant};
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;
use tracing_subscriber::fmt::MakeWriter;

use crate::harness::{POD_IP, SECRET, Scene, TOKEN, body};

/// A second subscriber. With only one in the process, `tracing` asks the thread that reaches a log call first, and a thread
/// of another test has none: the call would be off for all threads.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// What is logged.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Collects what this thread logs, at every level, while the guard lives.
    pub(crate) fn collect() -> (Self, tracing::subscriber::DefaultGuard) {
        LazyLock::force(&SECOND);
        let lines = Self::default();
        let subscriber =
            tracing_subscriber::fmt().with_writer(lines.clone()).with_max_level(tracing::Level::TRACE);
        (lines, tracing::subscriber::set_default(subscriber.finish()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn refusals_are_logged_with_the_pod_and_the_reason_and_without_the_credential() {
    let (lines, logged) = Lines::collect();
    let scene = Scene::new();
    let text = serde_json::to_vec(&body(1, "ready")).unwrap();
    let mut signature = scene.signed(&text);
    signature.push('0');
    scene.send(POD_IP, Some(&signature), &text).await;
    scene.send(POD_IP, Some(&format!("Bearer {}x", *TOKEN)), &text).await;
    scene.send(POD_IP, Some(&format!("Bearer {}", *TOKEN)), b"{").await;
    scene.grant("uid-1", Err(ClaimError::Denied("port 1 is not a target port".into())));
    scene.register(&body(1, "ready")).await;
    scene.grant("uid-1", Err(ClaimError::Unavailable("no answer".into())));
    scene.register(&body(1, "ready")).await;
    scene.grant("uid-1", Ok(ClaimGrant::default()));
    scene.register(&body(1, "ready")).await;
    drop(logged);
    let log = lines.text();
    let has = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["WARN", "shop/cart", "cart-1", "port 1 is not a target port"]), "{log}");
    assert!(has(&["ERROR", "shop/cart", "no answer"]), "{log}");
    assert_eq!(log.lines().count(), 5, "what is accepted is not logged: {log}");
    let secret = String::from_utf8_lossy(SECRET);
    let signature = signature.split("signature=").nth(1).unwrap();
    for credential in [&*secret, &TOKEN, &signature[..16]] {
        assert!(!log.contains(credential), "{credential} in {log}");
    }
}
