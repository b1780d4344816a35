//! Tokens that the cluster reviews.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rouse_net::auth::{BoxFuture, PodIdentity, TokenAuthenticator, TokenCheck, TokenReviewer, TokenSettings};
use serde_json::json;
use tokio::sync::watch;

use super::*;
use rouse_testkit::token_issuer::{SigningKey, claims, pod};

/// A cluster that gives one answer to every review.
struct Cluster {
    answer: Mutex<Result<PodIdentity, AuthError>>,
    reviews: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
    /// While it is closed, reviews wait.
    open: watch::Sender<bool>,
}

impl Cluster {
    fn new(answer: Result<PodIdentity, AuthError>) -> Arc<Self> {
        Arc::new(Self {
            answer: Mutex::new(answer),
            reviews: AtomicUsize::default(),
            running: AtomicUsize::default(),
            most_running: AtomicUsize::default(),
            open: watch::Sender::new(true),
        })
    }

    fn authenticator(self: &Arc<Self>) -> TokenAuthenticator {
        let check = TokenCheck::Review(Arc::clone(self) as _);
        TokenAuthenticator::new(check, TokenSettings::default(), time_of_day)
    }

    fn reviews(&self) -> usize {
        self.reviews.load(Ordering::Relaxed)
    }
}

/// Counts a review as running until it is done or given up.
struct RunningGuard<'a>(&'a AtomicUsize);

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TokenReviewer for Cluster {
    fn review<'a>(
        &'a self,
        _token: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<PodIdentity, AuthError>> {
        assert_eq!(audience, "rouse-register");
        self.reviews.fetch_add(1, Ordering::Relaxed);
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_running.fetch_max(running, Ordering::Relaxed);
        let guard = RunningGuard(&self.running);
        Box::pin(async {
            let _guard = guard;
            self.open.subscribe().wait_for(|open| *open).await.unwrap();
            self.answer.lock().unwrap().clone()
        })
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_the_cluster_counts_for_a_minute() {
    let (cluster, key) = (Cluster::new(Ok(pod("cart-0"))), SigningKey::new("k1"));
    let (tokens, token) = (cluster.authenticator(), key.token("cart-0"));
    for _ in 0..3 {
        assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")));
    }
    assert_eq!(cluster.reviews(), 1);
    pass(Duration::from_secs(59)).await;
    assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")));
    assert_eq!(cluster.reviews(), 1);
    pass(Duration::from_secs(1)).await;
    *cluster.answer.lock().unwrap() = Err(AuthError::Refused("the pod is gone".to_owned()));
    assert_refused(tokens.authenticate(&token).await, "the pod is gone");
    assert_eq!(cluster.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_an_outage_of_the_cluster_are_passed_on_and_not_remembered() {
    let cluster = Cluster::new(Err(AuthError::Refused("not authenticated".to_owned())));
    let (tokens, token) = (cluster.authenticator(), SigningKey::new("k1").token("cart-0"));
    assert_refused(tokens.authenticate(&token).await, "not authenticated");
    *cluster.answer.lock().unwrap() = Err(AuthError::Unavailable("connection refused".to_owned()));
    assert_unavailable(tokens.authenticate(&token).await, "connection refused");
    *cluster.answer.lock().unwrap() = Ok(pod("cart-0"));
    assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_cannot_be_good_is_not_shown_to_the_cluster() {
    let (cluster, key) = (Cluster::new(Ok(pod("cart-0"))), SigningKey::new("k1"));
    let tokens = cluster.authenticator();
    let with = |name: &str, value| {
        let mut changed = claims("cart-0");
        changed[name] = value;
        key.sign(&changed)
    };
    for (token, reason) in [
        ("a.b.c".to_owned(), "not a signed JWT"),
        (with("exp", json!(START - 30)), "has expired"),
        (with("nbf", json!(START + 31)), "not valid yet"),
        (with("aud", json!(["vault"])), "not for the audience"),
        (with("kubernetes.io", json!({"namespace": "shop"})), "not bound to a pod"),
    ] {
        assert_refused(tokens.authenticate(&token).await, reason);
    }
    assert_eq!(cluster.reviews(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_remembered_review_ends_with_the_token() {
    let (cluster, key) = (Cluster::new(Ok(pod("cart-0"))), SigningKey::new("k1"));
    let tokens = cluster.authenticator();
    let mut soon = claims("cart-0");
    soon["exp"] = json!(START + 5);
    let token = key.sign(&soon);
    assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")));
    pass(Duration::from_secs(35)).await;
    assert_refused(tokens.authenticate(&token).await, "has expired");
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_with_one_token_share_a_review() {
    let (cluster, key) = (Cluster::new(Ok(pod("cart-0"))), SigningKey::new("k1"));
    let (tokens, token) = (cluster.authenticator(), key.token("cart-0"));
    cluster.open.send_replace(false);
    let open = async {
        settle().await;
        cluster.open.send_replace(true);
    };
    let (one, other, ()) = tokio::join!(tokens.authenticate(&token), tokens.authenticate(&token), open);
    assert_eq!((one, other), (Ok(pod("cart-0")), Ok(pod("cart-0"))));
    assert_eq!(cluster.reviews(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_review_is_answered_in_time_and_remembered_when_it_is_done() {
    let (cluster, key) = (Cluster::new(Ok(pod("cart-0"))), SigningKey::new("k1"));
    let (tokens, token) = (cluster.authenticator(), key.token("cart-0"));
    cluster.open.send_replace(false);
    let before = tokio::time::Instant::now();
    assert_unavailable(tokens.authenticate(&token).await, "takes too long");
    assert!(before.elapsed() < Duration::from_secs(2));
    cluster.open.send_replace(true);
    settle().await;
    assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")));
    assert_eq!(cluster.reviews(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_runs_sixteen_reviews_at_once_and_none_for_ever() {
    let (cluster, key) = (Cluster::new(Ok(pod("cart-0"))), SigningKey::new("k1"));
    let tokens = Arc::new(cluster.authenticator());
    cluster.open.send_replace(false);
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..1100 {
        let (tokens, token) = (Arc::clone(&tokens), key.token(&number.to_string()));
        requests.spawn(async move { tokens.authenticate(&token).await });
    }
    let answers = requests.join_all().await;
    let full = |answer: &Result<_, AuthError>| {
        *answer == Err(AuthError::Unavailable("too many tokens are being reviewed".to_owned()))
    };
    assert_eq!(answers.iter().filter(|answer| full(answer)).count(), 1100 - 1024);
    assert!(answers.iter().all(|answer| matches!(answer, Err(AuthError::Unavailable(_)))));
    assert_eq!(cluster.most_running.load(Ordering::Relaxed), 16);
    // After five seconds all of them have been given up, and there is room again.
    pass(Duration::from_secs(5)).await;
    cluster.open.send_replace(true);
    assert_eq!(tokens.authenticate(&key.token("cart-0")).await, Ok(pod("cart-0")));
}
