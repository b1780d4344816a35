//! Requests that are signed with a shared key.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use rouse_net::auth::{Authenticators, KeyScope, Sender, SharedKey, SharedKeys};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;

const OLD: &[u8] = b"old-old-old-old-old-old-old-old-";
const NEW: &[u8] = b"new-new-new-new-new-new-new-new-";

fn key(id: &str, secret: &[u8]) -> SharedKey {
    SharedKey::new(id, secret, shop()).unwrap()
}

fn shop() -> KeyScope {
    KeyScope::Only(vec!["shop".to_owned()])
}

fn of_shop() -> Sender {
    Sender::KeyHolder { namespaces: shop() }
}

fn accepting(keys: Vec<SharedKey>) -> Authenticators {
    Authenticators::default().with_shared_keys(Arc::new(SharedKeys::fixed(keys, time_of_day)))
}

/// Signs the usual request with this timestamp and nonce.
fn signed(key: &SharedKey, timestamp: u64, nonce: u8) -> String {
    key.sign("POST", "/v1/registrations", b"{}", timestamp, [nonce; 16])
}

async fn send(to: &Authenticators, authorization: &str) -> Result<Sender, AuthError> {
    to.authenticate(&request(Some(authorization))).await
}

#[tokio::test]
async fn a_signed_request_proves_the_namespaces_of_its_key_also_without_tls() {
    let (one, two) = (key("one", OLD), SharedKey::new("two", NEW, KeyScope::All).unwrap());
    let gateway = accepting(vec![one.clone(), two.clone()]);
    assert_eq!(send(&gateway, &signed(&one, START, 1)).await, Ok(of_shop()));
    let header = signed(&two, START, 1);
    let plain = CredentialRequest { secure: false, ..request(Some(&header)) };
    let everywhere = Sender::KeyHolder { namespaces: KeyScope::All };
    assert_eq!(gateway.authenticate(&plain).await, Ok(everywhere));
    assert!(shop().includes("shop") && !shop().includes("shop2") && KeyScope::All.includes("shop2"));
}

#[tokio::test]
async fn a_request_that_was_changed_is_refused() {
    let key = key("one", OLD);
    let gateway = accepting(vec![key.clone()]);
    let header = signed(&key, START, 1);
    let good = request(Some(&header));
    for changed in [
        CredentialRequest { method: "PUT", ..good },
        CredentialRequest { path: "/v1/registrations?", ..good },
        CredentialRequest { body: b"{ }", ..good },
        CredentialRequest { body: b"", ..good },
    ] {
        assert_refused(gateway.authenticate(&changed).await, "signature is wrong");
    }
    let last = header.chars().last().unwrap();
    let other = if last == '0' { "1" } else { "0" };
    for header in [
        header.replace(&format!("timestamp={START}"), &format!("timestamp={}", START + 1)),
        header.replace("nonce=01", "nonce=02"),
        format!("{}{other}", &header[..header.len() - 1]),
    ] {
        assert_refused(send(&gateway, &header).await, "signature is wrong");
    }
    // None of these used up the nonce.
    assert_eq!(gateway.authenticate(&good).await, Ok(of_shop()));
}

#[tokio::test]
async fn a_wrong_secret_or_an_unknown_key_is_refused() {
    let gateway = accepting(vec![key("one", OLD), key("two", NEW)]);
    assert_refused(send(&gateway, &signed(&key("one", NEW), START, 1)).await, "signature is wrong");
    assert_refused(send(&gateway, &signed(&key("three", OLD), START, 1)).await, "unknown key");
    // The id is signed too: the signature of one key does not count under the id of another.
    let renamed = signed(&key("one", OLD), START, 1).replace("key=one", "key=two");
    assert_refused(send(&gateway, &renamed).await, "signature is wrong");
    for header in ["Rouse-HMAC", "Rouse-HMAC ", "Rouse-HMAC key=one", "Rouse-HMAC key=one,,,"] {
        assert_refused(send(&gateway, header).await, "is not key=ID,timestamp=SECONDS");
    }
}

#[tokio::test]
async fn clocks_may_differ_by_thirty_seconds() {
    let key = key("one", OLD);
    let gateway = accepting(vec![key.clone()]);
    for (timestamp, good) in [
        (START - 31, false),
        (START - 30, true),
        (START + 30, true),
        (START + 31, false),
        (1, false),
        (u64::MAX, false),
    ] {
        let answer = send(&gateway, &signed(&key, timestamp, 1)).await;
        if good {
            assert_eq!(answer, Ok(of_shop()), "{timestamp}");
        } else {
            assert_refused(answer, "more than 30 seconds from the gateway's clock");
        }
    }
}

#[tokio::test]
async fn a_request_is_accepted_once_for_as_long_as_its_timestamp_is() {
    let key = key("one", OLD);
    let gateway = accepting(vec![key.clone(), self::key("two", OLD)]);
    let early = signed(&key, START + 30, 1);
    assert_eq!(send(&gateway, &early).await, Ok(of_shop()));
    for later in [0, 30, 59, 60] {
        set_time(START + later);
        assert_refused(send(&gateway, &early).await, "received before");
    }
    set_time(START + 61);
    assert_refused(send(&gateway, &early).await, "more than 30 seconds");
    assert_eq!(send(&gateway, &signed(&key, START + 61, 1)).await, Ok(of_shop()));
    // The clock goes back. The nonce is forgotten, and the request is refused nevertheless.
    set_time(START + 30);
    assert_refused(send(&gateway, &early).await, "received before");
    // Another key has a memory of its own.
    assert_eq!(send(&gateway, &signed(&self::key("two", OLD), START + 30, 1)).await, Ok(of_shop()));
}

#[tokio::test]
async fn nonces_are_bounded_per_key_and_none_is_forgotten_early() {
    let (busy, quiet) = (key("busy", OLD), key("quiet", NEW));
    let keys = SharedKeys::fixed(vec![busy.clone(), quiet.clone()], time_of_day).with_nonces_per_key(2);
    let gateway = Authenticators::default().with_shared_keys(Arc::new(keys));
    let first = signed(&busy, START, 1);
    assert_eq!(send(&gateway, &first).await, Ok(of_shop()));
    assert_eq!(send(&gateway, &signed(&busy, START, 2)).await, Ok(of_shop()));
    assert_unavailable(send(&gateway, &signed(&busy, START, 3)).await, "too many requests");
    assert_refused(send(&gateway, &first).await, "received before");
    assert_eq!(send(&gateway, &signed(&quiet, START, 1)).await, Ok(of_shop()));
    set_time(START + 31);
    assert_eq!(send(&gateway, &signed(&busy, START + 31, 3)).await, Ok(of_shop()));
}

fn write(folder: &Path, id: &str, secret: &[u8], namespaces: &str) {
    fs::write(folder.join(id), secret).unwrap();
    fs::write(folder.join(format!("{id}.namespaces")), namespaces).unwrap();
}

#[tokio::test]
async fn during_a_rotation_both_keys_work_and_after_it_the_old_one_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (key("old", OLD), key("new", NEW));
    write(folder.path(), "old", OLD, "shop");
    let keys = Arc::new(SharedKeys::load(folder.path(), time_of_day).unwrap());
    let gateway = Authenticators::default().with_shared_keys(Arc::clone(&keys));
    assert_eq!(send(&gateway, &signed(&old, START, 1)).await, Ok(of_shop()));
    assert_refused(send(&gateway, &signed(&new, START, 1)).await, "unknown key");
    write(folder.path(), "new", NEW, "shop");
    assert_eq!(keys.reload().unwrap(), 2);
    assert_refused(send(&gateway, &signed(&old, START, 1)).await, "received before");
    assert_eq!(send(&gateway, &signed(&old, START, 2)).await, Ok(of_shop()));
    assert_eq!(send(&gateway, &signed(&new, START, 1)).await, Ok(of_shop()));
    // A forgotten list of namespaces does not keep the old key alive.
    fs::remove_file(folder.path().join("old")).unwrap();
    assert_eq!(keys.reload().unwrap(), 1);
    assert_refused(send(&gateway, &signed(&old, START, 3)).await, "unknown key");
    assert_eq!(send(&gateway, &signed(&new, START, 2)).await, Ok(of_shop()));
    // The old key comes back, and so does the memory of its nonces.
    write(folder.path(), "old", OLD, "shop");
    assert_eq!(keys.reload().unwrap(), 2);
    assert_refused(send(&gateway, &signed(&old, START, 2)).await, "received before");
    // Without any key, no request is accepted.
    for file in ["old", "new"] {
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert_eq!(keys.reload().unwrap(), 0);
    assert_refused(send(&gateway, &signed(&new, START, 3)).await, "unknown key");
}

#[tokio::test]
async fn the_files_of_a_folder_are_read_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let with_newline = [OLD, b"\n"].concat();
    write(folder.path(), "newline", &with_newline, "shop\n");
    write(folder.path(), "dos", &[OLD, b"\r\n"].concat(), " shop ");
    write(folder.path(), "several", OLD, "shop, payments\nops-2");
    write(folder.path(), "everywhere", OLD, "*\n");
    fs::write(folder.path().join(".hidden"), "no key").unwrap();
    let keys = SharedKeys::load(folder.path(), time_of_day).unwrap();
    let gateway = Authenticators::default().with_shared_keys(Arc::new(keys));
    let several = ["shop", "payments", "ops-2"].map(str::to_owned).to_vec();
    for (id, namespaces) in [
        ("newline", shop()),
        ("dos", shop()),
        ("several", KeyScope::Only(several)),
        ("everywhere", KeyScope::All),
    ] {
        let answer = send(&gateway, &signed(&key(id, OLD), START, 1)).await;
        assert_eq!(answer, Ok(Sender::KeyHolder { namespaces }), "{id}");
    }
}

#[test]
fn a_folder_with_an_error_is_refused_and_the_old_keys_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let load = || SharedKeys::load(path, time_of_day).unwrap_err().to_string();
    assert!(load().contains("has no key"), "{}", load());
    write(path, "good", OLD, "shop");
    let keys = SharedKeys::load(path, time_of_day).unwrap();
    let check = |id: &str, secret: &[u8], namespaces: Option<&str>, reason: &str| {
        fs::write(path.join(id), secret).unwrap();
        if let Some(namespaces) = namespaces {
            fs::write(path.join(format!("{id}.namespaces")), namespaces).unwrap();
        }
        let error = keys.reload().unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(id), "{error} instead of {reason}");
        assert_eq!(load(), error);
        fs::remove_file(path.join(id)).unwrap();
        assert!(!error.contains("short-secret"), "{error}");
    };
    check("short", b"short-secret", Some("shop"), "fewer than 32 bytes");
    check("unscoped", OLD, None, "must list the namespaces");
    check("empty", OLD, Some(" \n"), "must list the namespaces");
    check("capital", OLD, Some("Shop"), "must list the namespaces");
    check("mixed", OLD, Some("*, shop"), "must list the namespaces");
    check("a key", OLD, Some("shop"), "letters, digits");
    check("large", &[b'x'; 5000], Some("shop"), "more than 4096 bytes");
    assert_eq!(keys.reload().unwrap(), 1);
    drop(folder);
    assert!(keys.reload().unwrap_err().to_string().contains("cannot be read"));
}

/// Updates files as kubelet updates a mounted Secret: they are links through `..data`, which is swapped.
fn mount(folder: &Path, version: &str, id: &str, secret: &[u8]) {
    let data = folder.join(version);
    fs::create_dir(&data).unwrap();
    write(&data, id, secret, "shop");
    symlink(version, folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    for name in [id.to_owned(), format!("{id}.namespaces")] {
        let link = folder.join(&name);
        if !link.is_symlink() {
            symlink(Path::new("..data").join(&name), link).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_mounted_secret_is_reloaded_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), "..1", "k1", OLD);
    let keys = Arc::new(SharedKeys::load(folder.path(), time_of_day).unwrap());
    let gateway = Authenticators::default().with_shared_keys(Arc::clone(&keys));
    let (cancel, mut watching) = (CancellationToken::new(), JoinSet::new());
    let (tell, mut told) = mpsc::channel(8);
    watching.spawn(Arc::clone(&keys).watch(cancel.clone(), move |news| {
        tell.try_send(news.map_err(|error| error.to_string())).unwrap();
    }));
    mount(folder.path(), "..2", "k1", NEW);
    assert_eq!(told.recv().await.unwrap(), Ok(1));
    assert_eq!(send(&gateway, &signed(&key("k1", NEW), START, 1)).await, Ok(of_shop()));
    assert_refused(send(&gateway, &signed(&key("k1", OLD), START, 2)).await, "signature is wrong");
    cancel.cancel();
    watching.join_all().await;
}
