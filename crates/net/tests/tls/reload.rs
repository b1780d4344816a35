//! Reload of certificate files under a running server.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::SystemTime;

use rouse_net::tls::{ClientConfigs, Identity};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;

fn of_files(identity: Identity) -> ServerSettings {
    ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_fails_no_handshake_and_the_next_one_sees_the_new_certificate() {
    let authority = Arc::new(Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let server = serve(of_files(authority.leaf(&["cart.test"]).write(folder.path())));
    let stop = CancellationToken::new();
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (server, authority, stop) = (Arc::clone(&server), Arc::clone(&authority), stop.clone());
        clients.spawn(async move {
            let mut made = 0;
            while !stop.is_cancelled() {
                // A new client each time, so that each handshake is a full one.
                talk(&server, &client(trusting(&authority, "cart.test"))).await;
                made += 1;
            }
            made
        });
    }
    for _ in 0..30 {
        let leaf = authority.leaf(&["cart.test"]);
        leaf.write(folder.path());
        server.reload().unwrap();
        let (stream, ..) = talk(&server, &client(trusting(&authority, "cart.test"))).await;
        assert!(shown(&stream) == leaf.der);
    }
    stop.cancel();
    let made: Vec<u32> = clients.join_all().await;
    assert!(made.iter().all(|&made| made > 0), "{made:?}");
}

#[tokio::test]
async fn a_broken_file_is_named_and_the_old_certificate_stays() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let leaf = authority.leaf(&["cart.test"]);
    let server = serve(of_files(leaf.write(folder.path())));
    let other = authority.leaf(&["cart.test"]);
    let crt = |text: &str| (Some(text.to_owned()), Some(leaf.key.clone()));
    let key = |text: &str| (Some(leaf.chain.clone()), Some(text.to_owned()));
    for ((chain, key), file, reason) in [
        (crt(""), "tls.crt", "contains no certificate"),
        (crt("-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"), "tls.crt", "is not valid PEM"),
        (crt(&leaf.chain[..200]), "tls.crt", "is not valid PEM"),
        (
            crt("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "tls.crt",
            "the certificate cannot",
        ),
        ((None, Some(leaf.key.clone())), "tls.crt", "cannot be read: No such file"),
        ((Some(leaf.chain.clone()), None), "tls.key", "cannot be read: No such file"),
        (key(&leaf.chain), "tls.key", "contains no unencrypted private key"),
        (
            key("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
            "tls.key",
            "the key cannot be used",
        ),
        (key(&other.key), "tls.key", "the key does not match the certificate in "),
    ] {
        for (name, text) in [("tls.crt", chain), ("tls.key", key)] {
            let path = folder.path().join(name);
            match text {
                Some(text) => fs::write(path, text).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
        }
        let error = server.reload().unwrap_err().to_string();
        let expected = format!("{}: {reason}", folder.path().join(file).display());
        assert!(error.starts_with(&expected), "{error} instead of {expected}");
        let (stream, ..) = talk(&server, &client(trusting(&authority, "cart.test"))).await;
        assert!(shown(&stream) == leaf.der, "{reason}");
    }
}

/// Updates files as kubelet updates a mounted Secret: they are links through `..data`, which is swapped.
fn mount(folder: &Path, version: &str, leaf: &Leaf) {
    let data = folder.join(version);
    fs::create_dir(&data).unwrap();
    leaf.write(&data);
    symlink(version, folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
}

// In memory, because time is paused to skip the watch interval of two seconds, and real sockets need real time.
async fn shown_in_memory(server: &ServerTls, client: &ClientTls) -> Vec<u8> {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (accepted, connected) =
        tokio::join!(server.accept(ours, patience()), client.connect(theirs, patience()));
    accepted.unwrap();
    connected.unwrap().0.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// The next message of the watch within a minute, if any.
async fn hear<T>(told: &mut mpsc::Receiver<T>) -> Option<T> {
    tokio::time::timeout(Duration::from_mins(1), told.recv()).await.ok().flatten()
}

#[tokio::test(start_paused = true)]
async fn a_swapped_secret_is_noticed_and_a_broken_one_is_told_once() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let leaves = [authority.leaf(&["cart.test"]), authority.leaf(&["cart.test"])];
    mount(folder.path(), "..1", &leaves[0]);
    for file in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{file}"), folder.path().join(file)).unwrap();
    }
    let [chain, key] = ["tls.crt", "tls.key"].map(|file| Pem::File(folder.path().join(file)));
    let server = serve(of_files(Identity { chain, key }));
    let client = client(trusting(&authority, "cart.test"));
    let (news, mut told) = mpsc::channel(8);
    let (cancel, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let tell = move |result: Result<_, _>| news.try_send(result).unwrap();
    tasks.spawn(Arc::clone(&server).watch(cancel.clone(), tell));

    assert!(hear(&mut told).await.is_none(), "nothing changed");
    mount(folder.path(), "..2", &leaves[1]);
    assert_eq!(hear(&mut told).await.unwrap().unwrap(), []);
    assert!(shown_in_memory(&server, &client).await == leaves[1].der);

    // Replaced atomically: a half-written file would cause another message.
    let put = |key: &str| {
        fs::write(folder.path().join("new"), key).unwrap();
        fs::rename(folder.path().join("new"), folder.path().join("..2/tls.key")).unwrap();
    };
    put(&leaves[0].key);
    hear(&mut told).await.unwrap().unwrap_err();
    assert!(hear(&mut told).await.is_none(), "the same error is reported once");
    assert!(shown_in_memory(&server, &client).await == leaves[1].der);
    put(&leaves[1].key);
    hear(&mut told).await.unwrap().unwrap();

    cancel.cancel();
    tasks.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_ca_bundle_is_trusted_by_the_same_client() {
    let (before, after) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("ca.pem");
    let write = |authority: &Authority| {
        let Pem::Bytes(bytes) = authority.ca() else { panic!() };
        fs::write(&bundle, bytes).unwrap();
    };
    write(&before);
    let configs = Arc::new(ClientConfigs::new(4.try_into().unwrap()));
    let settings = ClientSettings::new(name("cart.test"), Roots::Pem(vec![Pem::File(bundle.clone())]));
    let client = configs.get(&settings, |warning| panic!("{warning}")).unwrap();
    let (news, mut told) = mpsc::channel(8);
    let (cancel, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let tell = move |result: Result<_, _>| news.try_send(result).unwrap();
    tasks.spawn(Arc::clone(&configs).watch(cancel.clone(), tell));

    let [old, new] = [&before, &after].map(|authority| serve(server(&[&authority.leaf(&["cart.test"])])));
    shown_in_memory(&old, &client).await;
    fs::write(&bundle, "nothing").unwrap();
    assert!(hear(&mut told).await.unwrap().unwrap_err().to_string().ends_with("contains no certificate"));
    shown_in_memory(&old, &client).await;
    write(&after);
    hear(&mut told).await.unwrap().unwrap();
    shown_in_memory(&new, &client).await;
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (_, connected) = tokio::join!(old.accept(ours, patience()), client.connect(theirs, patience()));
    assert!(matches!(connected, Err(TlsError::UnknownCa)), "a session of old must not be resumed");

    cancel.cancel();
    tasks.join_all().await;
}

#[test]
fn the_expiry_of_a_certificate_in_use_is_known_and_follows_reloads_that_succeed() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let of = |end| authority.leaf_of(&["cart.test"], [2020, end]);
    let server = serve(of_files(of(2040).write(folder.path())));
    let expires = || server.served().iter().map(|it| it.expires.map(seconds)).collect::<Vec<_>>();
    assert_eq!(expires(), [Some(2_208_988_800)]);
    assert!(server.served()[0].file.ends_with("/tls.crt"), "{:?}", server.served());

    fs::write(folder.path().join("tls.crt"), "broken").unwrap();
    server.reload().unwrap_err();
    assert_eq!(expires(), [Some(2_208_988_800)], "the old one is in use");
    of(2041).write(folder.path());
    server.reload().unwrap();
    assert_eq!(expires(), [Some(2_240_611_200)]);
}

#[test]
fn the_expiry_is_that_of_the_leaf_also_if_it_is_past_or_not_valid_yet() {
    let authority = Authority::new();
    for (years, seconds_at_end) in [([2000, 2010], 1_262_304_000), ([2090, 2100], 4_102_444_800)] {
        let (server, _) = ServerTls::new(server(&[&authority.leaf_of(&["cart.test"], years)])).unwrap();
        assert_eq!(server.served()[0].expires.map(seconds), Some(seconds_at_end), "{years:?}");
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}
