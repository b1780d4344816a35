//! Conditions: what is said, and that nothing is written twice.

use rouse_kube::route::hosts::Conflict;
use rouse_kube::route::plan::Findings;
use rouse_kube::route::spec::{RouteKey, RouteKind};
use rouse_kube::route::status::{Statuses, conditions};
use serde_json::{Value, json};

fn key(kind: RouteKind) -> RouteKey {
    RouteKey { namespace: "shop".into(), name: "r".into(), kind }
}

fn said(findings: &Findings) -> Vec<(&'static str, bool, &'static str)> {
    conditions(findings).iter().map(|one| (one.kind, one.holds, one.reason)).collect()
}

#[test]
fn what_is_the_matter_is_said_and_nothing_else() {
    let well = Findings::default();
    assert_eq!(said(&well), [("Ready", true, "Reconciled"), ("Accepted", true, "Valid")]);
    let bad = Findings { faults: vec!["a".into(), "b".into()], ..Findings::default() };
    assert_eq!(said(&bad), [("Ready", false, "Invalid"), ("Accepted", false, "Invalid")]);
    assert_eq!(conditions(&bad)[1].message, "a; b");
    let outdated = Findings { outdated: true, ..bad };
    assert_eq!(said(&outdated), [("Ready", true, "Reconciled"), ("Accepted", false, "Invalid")]);
    let conflict = Conflict { host: "a".into(), owner: "claimed earlier by namespace b".into() };
    let stolen = Findings { conflicts: vec![conflict], ..Findings::default() };
    assert_eq!(said(&stolen)[0], ("Ready", false, "HostConflict"));
    assert_eq!(said(&stolen)[2], ("HostConflict", true, "HostConflict"));
    let sleepy =
        Findings { no_scale_target: Some("nobody".into()), ignored: vec!["x"], ..Findings::default() };
    assert_eq!(said(&sleepy)[0], ("Ready", true, "Reconciled"), "it serves what runs");
    assert_eq!(
        said(&sleepy)[2..],
        [("NoScaleTarget", true, "NoScaleTarget"), ("NotHonoured", true, "DirectToPod")]
    );
    let long = Findings { faults: vec!["ü".repeat(5000)], ..Findings::default() };
    assert!(conditions(&long)[1].message.len() < 2100);
}

#[test]
fn a_condition_keeps_the_time_at_which_its_status_changed() {
    let mut statuses = Statuses::default();
    let route = key(RouteKind::InterceptorRoute);
    let object = ("uid", Some(3));
    let first = statuses.due(&route, object, conditions(&Findings::default()), &[], "noon").unwrap();
    let present = first.patch["status"]["conditions"].as_array().unwrap().clone();
    assert_eq!(
        (&present[0]["lastTransitionTime"], &present[0]["observedGeneration"]),
        (&json!("noon"), &json!(3))
    );
    let faulty = Findings { faults: vec!["x".into()], outdated: true, ..Findings::default() };
    let second = statuses.due(&route, object, conditions(&faulty), &present, "later").unwrap();
    let times = |patch: &Value| -> Vec<Value> {
        let all = patch["status"]["conditions"].as_array().unwrap();
        all.iter().map(|one| one["lastTransitionTime"].clone()).collect()
    };
    assert_eq!(times(&second.patch), ["noon", "later"], "only Accepted has changed");
    assert_eq!(statuses.due(&route, object, conditions(&faulty), &present, "later"), None);
    let newer = statuses.due(&route, ("uid", Some(4)), conditions(&faulty), &present, "later").unwrap();
    assert_eq!(
        newer.patch["status"]["conditions"][0]["observedGeneration"],
        json!(4),
        "it was seen, and says so"
    );
}

#[test]
fn the_same_is_written_once_whoever_wrote_it() {
    for kind in [RouteKind::InterceptorRoute, RouteKind::HttpScaledObject] {
        let route = key(kind);
        let bad = || conditions(&Findings { faults: vec!["x".into()], ..Findings::default() });
        let mut statuses = Statuses::default();
        let write = statuses.due(&route, ("uid", None), bad(), &[], "noon").unwrap();
        assert_eq!(
            statuses.due(&route, ("uid", None), bad(), &[], "later"),
            None,
            "the watch may lag behind"
        );
        let present = write.patch["status"]["conditions"].as_array().unwrap().clone();
        let mut another = Statuses::default();
        assert_eq!(another.due(&route, ("uid", None), bad(), &present, "later"), None, "it is there already");
        statuses.failed(&route);
        assert!(statuses.due(&route, ("uid", None), bad(), &[], "later").is_some(), "it did not arrive");
        assert!(statuses.due(&route, ("another", None), bad(), &[], "later").is_some(), "another object");
        let well = conditions(&Findings::default());
        let cleared = statuses.due(&route, ("another", None), well, &present, "later").unwrap();
        assert!(!cleared.patch.to_string().contains("\"False\""), "{}", cleared.patch);
    }
}
