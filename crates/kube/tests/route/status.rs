//! The conditions of a route's status: their content, and that nothing is written twice.

use rouse_kube::objects::route::{RouteKey, RouteKind};
use rouse_kube::routes::hosts::Conflict;
use rouse_kube::routes::plan::Findings;
use rouse_kube::routes::status::{CurrentStatus, StatusTracker, conditions};
use serde_json::{Value, json};

fn key(kind: RouteKind) -> RouteKey {
    RouteKey { namespace: "shop".into(), name: "r".into(), kind }
}

/// An object with this UID, generation and conditions.
fn object<'a>(uid: &'a str, generation: Option<i64>, conditions: &'a [Value]) -> CurrentStatus<'a> {
    CurrentStatus { uid, generation, version: "7", conditions }
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
        Findings { no_scale_target: Some("missing".into()), ignored: vec!["x"], ..Findings::default() };
    assert_eq!(said(&sleepy)[0], ("Ready", true, "Reconciled"), "it serves what runs");
    assert_eq!(
        said(&sleepy)[2..],
        [("NoScaleTarget", true, "NoScaleTarget"), ("NotHonoured", true, "DirectToPod")]
    );
    let mistaken = Findings { invalid_annotations: vec!["x".into()], ..Findings::default() };
    assert_eq!(said(&mistaken)[2..], [("NotHonoured", true, "InvalidAnnotation")]);
    let long = Findings { faults: vec!["ü".repeat(5000)], ..Findings::default() };
    assert!(conditions(&long)[1].message.len() < 2100);
}

#[test]
fn a_condition_keeps_the_time_at_which_its_status_changed() {
    let mut statuses = StatusTracker::default();
    let route = key(RouteKind::InterceptorRoute);
    let well = conditions(&Findings::default());
    let first = statuses.due(&route, object("uid", Some(3), &[]), well, "noon").unwrap();
    assert_eq!((first.patch["metadata"]["resourceVersion"].as_str(), &*first.version), (Some("7"), "7"));
    let present = first.patch["status"]["conditions"].as_array().unwrap().clone();
    assert_eq!(
        (&present[0]["lastTransitionTime"], &present[0]["observedGeneration"]),
        (&json!("noon"), &json!(3))
    );
    let faulty = Findings { faults: vec!["x".into()], outdated: true, ..Findings::default() };
    let now = object("uid", Some(3), &present);
    let second = statuses.due(&route, now, conditions(&faulty), "later").unwrap();
    let times = |patch: &Value| -> Vec<Value> {
        let all = patch["status"]["conditions"].as_array().unwrap();
        all.iter().map(|one| one["lastTransitionTime"].clone()).collect()
    };
    assert_eq!(times(&second.patch), ["noon", "later"], "only Accepted has changed");
    assert_eq!(statuses.due(&route, now, conditions(&faulty), "later"), None);
    let newer = object("uid", Some(4), &present);
    let newer = statuses.due(&route, newer, conditions(&faulty), "later").unwrap();
    assert_eq!(
        newer.patch["status"]["conditions"][0]["observedGeneration"],
        json!(4),
        "the observed generation is written"
    );
}

#[test]
fn the_same_condition_is_written_once_by_any_gateway() {
    for kind in [RouteKind::InterceptorRoute, RouteKind::HttpScaledObject] {
        let route = key(kind);
        let bad = || conditions(&Findings { faults: vec!["x".into()], ..Findings::default() });
        let mut statuses = StatusTracker::default();
        let write = statuses.due(&route, object("uid", None, &[]), bad(), "noon").unwrap();
        assert_eq!(
            statuses.due(&route, object("uid", None, &[]), bad(), "later"),
            None,
            "the watch may lag behind"
        );
        let present = write.patch["status"]["conditions"].as_array().unwrap().clone();
        let mut another = StatusTracker::default();
        assert_eq!(
            another.due(&route, object("uid", None, &present), bad(), "later"),
            None,
            "it is there already"
        );
        statuses.failed(&route);
        assert!(
            statuses.due(&route, object("uid", None, &[]), bad(), "later").is_some(),
            "it did not arrive"
        );
        assert!(
            statuses.due(&route, object("another", None, &[]), bad(), "later").is_some(),
            "another object"
        );
        let well = conditions(&Findings::default());
        let cleared = statuses.due(&route, object("another", None, &present), well, "later").unwrap();
        assert!(!cleared.patch.to_string().contains("\"False\""), "{}", cleared.patch);
    }
}

/// A `Ready` of another controller.
fn theirs(generation: i64) -> Value {
    json!({"type": "Ready", "status": "True", "reason": "Reconciled", "message": "InterceptorRoute reconciled",
           "observedGeneration": generation})
}

/// The types of the conditions that are written on an object with these conditions, sorted.
fn types(generation: i64, present: &[Value]) -> Vec<String> {
    let all = conditions(&Findings::default());
    let route = key(RouteKind::InterceptorRoute);
    let now = object("uid", Some(generation), present);
    let write = StatusTracker::default().due(&route, now, all, "noon").unwrap();
    let written = write.patch["status"]["conditions"].as_array().unwrap();
    let mut types: Vec<String> = written.iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect();
    types.sort();
    types
}

#[test]
fn ready_is_written_unless_another_controller_that_runs_writes_it() {
    let (ours, beside) = (["Accepted", "Ready"], ["Accepted", "Ready", "RouseReady"]);
    let own =
        |generation: i64| json!({"type": "RouseReady", "status": "True", "observedGeneration": generation});
    assert_eq!(types(1, &[]), ours);
    assert_eq!(types(1, &[theirs(1)]), beside);
    assert_eq!(types(2, &[theirs(1)]), beside, "the other controller may be slow");
    assert_eq!(types(2, &[theirs(1), own(1)]), beside);
    assert_eq!(types(3, &[theirs(1), own(2)]), ours, "the other controller missed a whole version");
    let mut silent = theirs(1);
    silent["observedGeneration"].take();
    assert_eq!(
        types(3, &[silent, own(2)]),
        beside,
        "the other controller never writes an observed generation"
    );
    // A condition of one gateway is recognised by another.
    let conflict = Conflict { host: "a".into(), owner: "taken".into() };
    for findings in [
        Findings::default(),
        Findings { faults: vec!["x".into()], ..Findings::default() },
        Findings { faults: vec!["x".into()], outdated: true, ..Findings::default() },
        Findings { conflicts: vec![conflict], ..Findings::default() },
        Findings { bodies: vec!["x".into()], ..Findings::default() },
        Findings { tls: ["x".into()].into(), ..Findings::default() },
    ] {
        let route = key(RouteKind::InterceptorRoute);
        let now = object("uid", Some(1), &[]);
        let write = StatusTracker::default().due(&route, now, conditions(&findings), "noon").unwrap();
        let present = write.patch["status"]["conditions"].as_array().unwrap().clone();
        assert_eq!(types(2, &present), ours, "{present:?}");
    }
}
