//! Facts about certificates of others: expiry, names, key and trust.

use std::time::SystemTime;

use rouse_net::tls::InspectedCertificate;
use rouse_testkit::certificates::pem;
use rouse_testkit::certificates::rcgen::{ExtendedKeyUsagePurpose, KeyPair};

use super::*;

fn inspect(leaf: &Leaf) -> InspectedCertificate {
    InspectedCertificate::new(pem(&leaf.chain)).unwrap()
}

/// The start of the year.
fn year(year: u32) -> SystemTime {
    let days = u64::from(year - 1970) * 365 + u64::from((year - 1969) / 4);
    SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400)
}

#[test]
fn a_certificate_says_when_it_expires_for_whom_it_is_and_whether_a_key_is_its_own() {
    let authority = Authority::new();
    let leaf = authority.leaf_of(&["a.test", "*.b.test"], [2020, 2031]);
    let inspected = inspect(&leaf);
    assert_eq!(inspected.expires(), Some(year(2031)));
    for (host, expected) in [("a.test", true), ("x.b.test", true), ("b.test", false), ("c.test", false)] {
        assert_eq!(inspected.is_for(&name(host)), expected, "{host}");
    }
    inspected.check_key(pem(&leaf.key)).unwrap();
    let other = inspected.check_key(pem(&authority.leaf(&["a.test"]).key)).unwrap_err();
    assert!(other.to_string().contains("does not match"), "{other}");
    let garbage = InspectedCertificate::new(pem("hello")).unwrap_err();
    assert!(garbage.to_string().contains("no certificate"), "{garbage}");
}

#[test]
fn a_bundle_is_trusted_if_it_has_the_authority_among_others_and_expiry_is_a_fact_of_its_own() {
    let (old, new, other) = (Authority::named("old"), Authority::named("new"), Authority::named("other"));
    let both = pem(&format!("{}{}", old.pem(), new.pem()));
    for authority in [&old, &new] {
        let inspected = inspect(&authority.leaf_of(&["a.test"], [2020, 2030]));
        for now in [year(2025), year(2031)] {
            inspected.check_trust(&both, now).unwrap();
            inspected.check_trust(&other.ca(), now).unwrap_err();
        }
        let early = inspected.check_trust(&both, year(2019)).unwrap_err();
        assert!(early.to_string().contains("not valid yet"), "{early}");
    }
    let for_clients = old.leaf_by(&["a.test"], &KeyPair::generate().unwrap(), |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    inspect(&for_clients).check_trust(&both, year(2025)).unwrap_err();
    let itself = Leaf::self_signed(&["a.test"]);
    inspect(&itself).check_trust(&pem(&itself.chain), year(2025)).unwrap();
}
