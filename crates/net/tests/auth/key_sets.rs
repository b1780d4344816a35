//! The key set of the issuer: unknown keys, rotation, refresh and outages.

use std::sync::Arc;

use rouse_net::auth::TokenAuthenticator;

use super::*;
use rouse_testkit::token_issuer::{PublishedKeys, SigningKey, pod};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// Makes the tokens of this test valid for days.
fn long_token(key: &SigningKey, name: &str) -> String {
    let mut claims = rouse_testkit::token_issuer::claims(name);
    claims["exp"] = serde_json::json!(START + 7 * 86_400);
    key.sign(&claims)
}

/// A key, an issuer that publishes it, and an authenticator that has fetched nothing yet.
fn issuer(id: &str) -> (SigningKey, Arc<PublishedKeys>, TokenAuthenticator) {
    let key = SigningKey::new(id);
    let published = PublishedKeys::new(&[&key]);
    let tokens = published.authenticator(time_of_day);
    (key, published, tokens)
}

/// The same once `token`, which is valid for days, was accepted.
async fn trusted(id: &str) -> (SigningKey, Arc<PublishedKeys>, TokenAuthenticator, String) {
    let (key, published, tokens) = issuer(id);
    let token = long_token(&key, "cart-0");
    assert!(accepts(&tokens, &token).await);
    (key, published, tokens, token)
}

async fn accepts(tokens: &TokenAuthenticator, token: &str) -> bool {
    tokens.authenticate(token).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_fetched_once_and_a_flood_of_them_once_in_ten_seconds() {
    let new = SigningKey::new("new");
    let (old, published, tokens) = issuer("old");
    assert!(accepts(&tokens, &old.token("cart-0")).await);
    assert_eq!(published.fetches(), 1);
    pass(10 * SECOND).await;
    published.publish(&[&old, &new]);
    assert_eq!(tokens.authenticate(&new.token("cart-1")).await, Ok(pod("cart-1")));
    assert_eq!(published.fetches(), 2);
    for number in 0..100 {
        let stranger = SigningKey::new(&format!("stranger-{number}"));
        assert_refused(tokens.authenticate(&stranger.token("cart-0")).await, "unknown key");
    }
    assert_eq!(published.fetches(), 2, "the last fetch was less than ten seconds ago");
    pass(10 * SECOND).await;
    for number in 0..100 {
        let stranger = SigningKey::new(&format!("stranger-{number}"));
        assert_refused(tokens.authenticate(&stranger.token("cart-0")).await, "unknown key");
    }
    assert_eq!(published.fetches(), 3);
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_one_fetch() {
    let (key, published, tokens) = issuer("k1");
    published.set_open(false);
    let names = ["a", "b", "c"].map(|name| (pod(name), key.token(name)));
    let [a, b, c] = names.each_ref().map(|(_, token)| tokens.authenticate(token));
    let open = async {
        settle().await;
        published.set_open(true);
    };
    let (a, b, c, ()) = tokio::join!(a, b, c, open);
    assert_eq!([a, b, c], names.map(|(pod, _)| Ok(pod)));
    assert_eq!(published.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_keys_less_than_a_sidecar_does_and_the_fetch_goes_on() {
    let (key, published, tokens) = issuer("k1");
    published.set_open(false);
    let before = tokio::time::Instant::now();
    assert_unavailable(tokens.authenticate(&key.token("cart-0")).await, "no answer yet");
    assert!(before.elapsed() < 2 * SECOND);
    published.set_open(true);
    settle().await;
    assert_eq!(tokens.authenticate(&key.token("cart-0")).await, Ok(pod("cart-0")));
    assert_eq!(published.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_never_answers_is_given_up_and_asked_again() {
    let (key, published, tokens) = issuer("k1");
    published.set_open(false);
    for _ in 0..5 {
        assert_unavailable(tokens.authenticate(&key.token("cart-0")).await, "cannot be fetched");
    }
    assert_eq!(published.fetches(), 2, "the first fetch had five seconds");
    published.set_open(true);
    settle().await;
    assert!(accepts(&tokens, &key.token("cart-0")).await);
}

#[tokio::test(start_paused = true)]
async fn at_the_start_a_failed_fetch_is_repeated_every_second() {
    let (key, published, tokens) = issuer("k1");
    published.answer(Err("connection refused".to_owned()));
    for _ in 0..10 {
        assert_unavailable(tokens.authenticate(&key.token("cart-0")).await, "connection refused");
    }
    assert_eq!(published.fetches(), 1);
    published.publish(&[&key]);
    pass(SECOND).await;
    assert!(accepts(&tokens, &key.token("cart-0")).await);
    assert_eq!(published.fetches(), 2);
}

#[tokio::test(start_paused = true)]
async fn during_a_rotation_both_keys_work_and_after_it_the_old_one_does_not() {
    let new = SigningKey::new("new");
    let (old, published, tokens, before) = trusted("old").await;
    pass(MINUTE).await;
    published.publish(&[&old, &new]);
    let after = long_token(&new, "cart-0");
    assert!(accepts(&tokens, &after).await && accepts(&tokens, &before).await);
    published.publish(&[&new]);
    // The first request after five minutes starts the refresh, and is not delayed by it.
    pass(5 * MINUTE).await;
    assert!(accepts(&tokens, &after).await);
    settle().await;
    assert_eq!(published.fetches(), 3);
    assert!(accepts(&tokens, &after).await, "remembered, and its key is still there");
    pass(10 * SECOND).await;
    for token in [&before, &long_token(&old, "cart-1")] {
        assert_refused(tokens.authenticate(token).await, "unknown key");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_quiet_time_a_key_that_was_removed_or_replaced_is_not_accepted_even_once() {
    for (next, reason) in [("new", "unknown key"), ("old", "signature is wrong")] {
        let new = SigningKey::new(next);
        let (_, published, tokens, token) = trusted("old").await;
        published.publish(&[&new]);
        pass(15 * MINUTE).await;
        assert_refused(tokens.authenticate(&token).await, reason);
        assert!(accepts(&tokens, &long_token(&new, "cart-0")).await, "{next}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_keys_are_used_through_an_outage_for_24_hours_and_no_longer() {
    let next = SigningKey::new("k2");
    let (key, published, tokens, token) = trusted("k1").await;
    published.answer(Err("connection refused".to_owned()));
    for hour in 0..23 {
        pass(HOUR).await;
        assert!(accepts(&tokens, &token).await, "after {hour} h");
        assert!(accepts(&tokens, &long_token(&key, &format!("cart-{hour}"))).await, "after {hour} h");
    }
    // A key that may be new cannot be looked up now.
    assert_unavailable(tokens.authenticate(&long_token(&next, "cart-0")).await, "connection refused");
    pass(HOUR).await;
    for token in [&token, &long_token(&key, "cart-99")] {
        assert_unavailable(tokens.authenticate(token).await, "connection refused");
    }
    published.publish(&[&key]);
    pass(10 * SECOND).await;
    assert!(accepts(&tokens, &token).await);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_key_set_is_an_outage() {
    let (_, published, tokens, token) = trusted("k1").await;
    let large = vec![b' '; (1 << 20) + 1];
    for answer in [&b"<html>"[..], b"{}", b"{\"keys\":[]}", b"{\"keys\":[{}]}", &large] {
        published.answer(Ok(answer.to_vec()));
        pass(20 * MINUTE).await;
        assert!(accepts(&tokens, &token).await);
        let stranger = long_token(&SigningKey::new("k2"), "cart-0");
        assert_unavailable(tokens.authenticate(&stranger).await, "the key set");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unsuitable_token_causes_no_fetch() {
    let (key, published, tokens) = issuer("k1");
    let mut claims = rouse_testkit::token_issuer::claims("cart-0");
    claims["iss"] = serde_json::json!("https://other.example");
    assert_refused(tokens.authenticate(&key.sign(&claims)).await, "another issuer");
    assert_refused(tokens.authenticate("a.b.c").await, "not a signed JWT");
    assert_eq!(published.fetches(), 0);
}
