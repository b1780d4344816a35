//! Client certificates, from the handshake to the sender.

use std::sync::Arc;

use rouse_net::auth::{Authenticators, CertificateAuthenticator, Sender};
use rouse_net::tls::{
    CertEntry, ClientAuth, ClientSettings, ClientTls, Roots, ServerName, ServerSettings, ServerTls,
    peer_certificate,
};
use rouse_testkit::certificates::rcgen::{KeyPair, SanType};
use rouse_testkit::certificates::{Authority, Leaf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;

const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

fn accepting() -> Authenticators {
    Authenticators::default().with_certificates(CertificateAuthenticator::new("cluster.local"))
}

fn cart() -> Sender {
    Sender::ServiceAccount { namespace: "shop".to_owned(), name: "cart".to_owned() }
}

/// A certificate with these URI names, and one DNS name.
fn leaf(authority: &Authority, uris: &[&str]) -> Leaf {
    authority.leaf_by(&["cart.shop"], &KeyPair::generate().unwrap(), |params| {
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
    })
}

#[test]
fn a_certificate_must_have_exactly_one_name_of_our_trust_domain() {
    let authority = Authority::new();
    let sender = |uris: &[&str]| accepting().certificate_sender(&leaf(&authority, uris).der).unwrap();
    assert_eq!(sender(&[CART]), Ok(cart()));
    assert_refused(sender(&[]), "exactly one URI name");
    assert_refused(sender(&[CART, "spiffe://cluster.local/ns/shop/sa/admin"]), "exactly one URI name");
    assert_refused(sender(&[CART, "https://example.com"]), "exactly one URI name");
    let others =
        ["spiffe://other.example/ns/shop/sa/cart", "spiffe://cluster.local/cart", "https://example.com"];
    for other in others {
        assert_refused(sender(&[other]), "is not spiffe://cluster.local/ns/NAMESPACE/sa/NAME");
    }
    for junk in [&b""[..], b"no certificate", &[0x30, 0x80]] {
        assert_refused(accepting().certificate_sender(junk).unwrap(), "cannot be read");
    }
    assert_eq!(Authenticators::default().certificate_sender(&leaf(&authority, &[CART]).der), None);
}

#[tokio::test]
async fn the_certificate_of_a_connection_is_the_credential_of_its_requests() {
    let gateway = accepting();
    let good = Ok(cart());
    let bad = Err(AuthError::Refused("exactly one URI name".to_owned()));
    let with = |certificate| CredentialRequest { certificate, ..request(None) };
    assert_eq!(gateway.authenticate(&with(Some(&good))).await, good);
    assert_refused(gateway.authenticate(&with(Some(&bad))).await, "exactly one URI name");
    assert_refused(gateway.authenticate(&with(None)).await, "this gateway accepts: a client certificate");
    // A gateway that does not accept certificates does not accept one that was verified for something else.
    assert_refused(Authenticators::default().authenticate(&with(Some(&good))).await, "no credential");
}

/// The client certificate that the server saw on a first connection and on a resumed one.
async fn seen(server: &ServerTls, client: &ClientTls) -> [Option<Vec<u8>>; 2] {
    let deadline = Instant::now() + Duration::from_secs(20);
    let once = async || {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (accepted, connected) =
            tokio::join!(server.accept(ours, deadline), client.connect(theirs, deadline));
        let ((mut ours, _), (mut theirs, _)) = (accepted.unwrap(), connected.unwrap());
        // Session tickets arrive with the first data.
        ours.write_u8(1).await.unwrap();
        ours.flush().await.unwrap();
        assert_eq!(theirs.read_u8().await.unwrap(), 1);
        peer_certificate(&ours).map(<[u8]>::to_vec)
    };
    [once().await, once().await]
}

#[tokio::test]
async fn the_server_knows_the_certificate_of_a_client_also_when_it_resumes() {
    let authority = Arc::new(Authority::new());
    let certificates =
        vec![CertEntry { identity: authority.leaf(&["gateway.test"]).identity(), names: Vec::new() }];
    let settings = ServerSettings {
        client_auth: ClientAuth::Optional(authority.ca()),
        ..ServerSettings::new(certificates)
    };
    let (server, _) = ServerTls::new(settings).unwrap();
    let name = ServerName::try_from("gateway.test").unwrap();
    let anonymous = ClientSettings::new(name, Roots::Pem(vec![authority.ca()]));
    let leaf = leaf(&authority, &[CART]);
    let known = ClientSettings { identity: Some(leaf.identity()), ..anonymous.clone() };
    let client = |settings| ClientTls::new(settings).unwrap().0;
    assert_eq!(seen(&server, &client(anonymous)).await, [None, None]);
    let certificates = seen(&server, &client(known)).await;
    for certificate in certificates {
        assert_eq!(accepting().certificate_sender(&certificate.unwrap()), Some(Ok(cart())));
    }
}
