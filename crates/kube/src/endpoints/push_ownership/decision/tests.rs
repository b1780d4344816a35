//! Decisions about claims against a naive model, for every combination of true and false parts.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rouse_core::endpoint::{PodUid, ServiceId};
use rouse_net::auth::PushMode;
use serde_json::{Value, json};

use super::*;
use crate::endpoints::endpoint_policy::ManualEndpoints;
use crate::objects::{Pod, Service};

/// A pod, a Service and a claim, each part from a small set of values, so that parts often match.
#[derive(Debug, Clone)]
struct Case {
    pod: PodCase,
    service: ServiceCase,
    claim: ClaimCase,
    taken: Vec<u8>,
    host_network: bool,
}

#[derive(Debug, Clone)]
struct PodCase {
    namespace: usize,
    name: usize,
    uid: usize,
    account: Option<usize>,
    labels: Vec<usize>,
    ips: BTreeSet<u8>,
    /// The number of the container port `web`, and whether it is that of an init container, a sidecar or a container.
    web: Option<(u16, usize)>,
    host_network: bool,
    deleting: bool,
}

#[derive(Debug, Clone)]
struct ServiceCase {
    external: bool,
    selector: Vec<usize>,
    annotation: Option<Vec<usize>>,
    /// The target of port `http`: a number or the name `web`.
    http: Option<u16>,
    /// A second port, by number.
    admin: Option<u16>,
    mode: Option<PushMode>,
}

#[derive(Debug, Clone)]
struct ClaimCase {
    namespace: usize,
    name: usize,
    uid: usize,
    account: Option<usize>,
    ips: Vec<u8>,
    http: Option<u16>,
    admin: Option<u16>,
}

const LABELS: [(&str, &str); 3] = [("app", "cart"), ("tier", "web"), ("app", "till")];
const NUMBERS: [u16; 3] = [80, 8080, 9000];
/// The gateway listens here.
const OWN: (u8, u16) = (9, 8080);

fn number() -> impl Strategy<Value = u16> {
    prop::sample::select(NUMBERS.to_vec())
}

/// Mostly 0, so that whole claims are often true.
fn index(most: usize) -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0), 1 => 0..=most]
}

fn ips() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(1_u8), 2 => Just(2), 1 => Just(9)]
}

fn pods() -> impl Strategy<Value = PodCase> {
    let labels = prop::collection::vec(0..3_usize, 0..3);
    let web = prop::option::weighted(0.8, (number(), 0..3_usize));
    let ips = prop::collection::btree_set(ips(), 0..3);
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let who = (index(1), index(1), index(1), prop::option::weighted(0.5, index(1)));
    (who, labels, ips, web, flags).prop_map(|((namespace, name, uid, account), labels, ips, web, flags)| {
        let (host_network, deleting) = flags;
        PodCase { namespace, name, uid, account, labels, ips, web, host_network, deleting }
    })
}

fn services() -> impl Strategy<Value = ServiceCase> {
    let selector = prop::collection::vec(0..3_usize, 0..2);
    let annotation = prop::option::of(prop::collection::vec(0..3_usize, 1..2));
    let mode = prop::option::of(prop::sample::select(vec![PushMode::Off, PushMode::Observe, PushMode::On]));
    let ports = (prop::option::of(number()), prop::option::weighted(0.3, number()));
    (prop::bool::weighted(0.1), selector, annotation, ports, mode).prop_map(
        |(external, selector, annotation, (http, admin), mode)| ServiceCase {
            external,
            selector,
            annotation,
            http,
            admin,
            mode,
        },
    )
}

fn claims() -> impl Strategy<Value = ClaimCase> {
    let ips = prop::collection::vec(ips(), 0..3);
    let ports = (prop::option::weighted(0.9, number()), prop::option::weighted(0.3, number()));
    let who = (index(1), index(1), index(1), prop::option::weighted(0.3, index(1)));
    (who, ips, ports).prop_map(|((namespace, name, uid, account), ips, (http, admin))| ClaimCase {
        namespace,
        name,
        uid,
        account,
        ips,
        http,
        admin,
    })
}

/// Cases of which many are true: the claim mostly repeats what the pod and the Service say.
fn cases() -> impl Strategy<Value = Case> {
    let taken = prop::collection::vec(ips(), 0..2);
    let honest = prop::array::uniform7(prop::bool::weighted(0.9));
    (pods(), services(), claims(), (prop::bool::weighted(0.3), taken), any::<bool>(), honest).prop_map(
        |(pod, service, mut claim, (is_taken, taken), host_network, honest)| {
            let [namespace, name, uid, ips, http, admin, labels] = honest;
            let mut pod = pod;
            if labels {
                let wanted = if service.selector.is_empty() { service.annotation.clone() } else { None };
                pod.labels = wanted.unwrap_or_else(|| service.selector.clone());
            }
            claim.namespace = if namespace { pod.namespace } else { claim.namespace };
            claim.name = if name { pod.name } else { claim.name };
            claim.uid = if uid { pod.uid } else { claim.uid };
            claim.ips = if ips { pod.ips.iter().copied().collect() } else { claim.ips };
            let resolved = resolve(&pod, &service);
            claim.http = if http { resolved.get("http").copied() } else { claim.http };
            claim.admin = if admin { resolved.get("admin").copied() } else { claim.admin };
            Case { pod, service, claim, taken: if is_taken { taken } else { Vec::new() }, host_network }
        },
    )
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn pairs_of(labels: &[usize]) -> Labels {
    labels.iter().map(|at| LABELS[*at]).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The ports of the Service on the pod, as the documentation of Kubernetes has it.
fn resolve(pod: &PodCase, service: &ServiceCase) -> BTreeMap<String, u16> {
    let named = pod.web.filter(|(_, kind)| *kind != 0).map(|(number, _)| number);
    let mut ports = BTreeMap::new();
    if let Some(number) = service.http.or(named) {
        ports.insert("http".to_owned(), number);
    }
    if let Some(number) = service.admin {
        ports.insert("admin".to_owned(), number);
    }
    ports
}

impl Case {
    fn pod(&self) -> PodFacts {
        let case = &self.pod;
        let web = case.web.map(|(number, _)| json!([{"name": "web", "containerPort": number}]));
        let container =
            json!({"ports": web, "restartPolicy": case.web.filter(|web| web.1 == 1).map(|_| "Always")});
        let (containers, inits) = match case.web {
            Some((_, 2)) | None => (json!([container]), json!([])),
            Some(_) => (json!([{}]), json!([container])),
        };
        let ips: Vec<Value> = case.ips.iter().map(|n| json!({"ip": ip(*n).to_string()})).collect();
        let account = case.account.map(|at| ["default", "cart"][at]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("pod-{}", case.name), "namespace": format!("ns-{}", case.namespace),
                         "uid": format!("uid-{}", case.uid), "labels": pairs_of(&case.labels),
                         "deletionTimestamp": case.deleting.then_some("2026-01-01T00:00:00Z")},
            "spec": {"containers": containers, "initContainers": inits, "hostNetwork": case.host_network,
                     "serviceAccountName": account},
            "status": {"phase": "Running", "podIPs": ips},
        }))
        .unwrap();
        PodFacts::new(pod).unwrap()
    }

    fn service(&self) -> ServiceSummary {
        let case = &self.service;
        let target = case.http.map_or(json!("web"), |number| json!(number));
        let mut ports = vec![json!({"name": "http", "port": 1, "targetPort": target})];
        ports.extend(case.admin.map(|number| json!({"name": "admin", "port": number})));
        let annotation = case.annotation.as_ref().map(|labels| pairs(&pairs_of(labels)));
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "cart", "namespace": format!("ns-{}", self.claim.namespace),
                         "annotations": {"rouse.dev/selector": annotation.unwrap_or_default(),
                                         "rouse.dev/push": case.mode.map_or("", PushMode::as_str)}},
            "spec": {"type": case.external.then_some("ExternalName"), "selector": pairs_of(&case.selector), "ports": ports},
        }))
        .unwrap();
        let mut service = service;
        service.metadata.annotations.retain(|_, value| !value.is_empty());
        ServiceSummary::new(service).unwrap()
    }

    fn claim(&self) -> Claim {
        let case = &self.claim;
        let ports = [("http", case.http), ("admin", case.admin)].into_iter();
        let ports = ports.filter_map(|(name, number)| Some((PortName::new(name), number?)));
        Claim {
            service: ServiceId::new(&format!("ns-{}", case.namespace), "cart").unwrap(),
            pod: format!("pod-{}", case.name),
            uid: PodUid::new(&format!("uid-{}", case.uid)),
            ips: case.ips.iter().map(|n| ip(*n)).collect(),
            ports: ports.collect(),
            service_account: case.account.map(|at| ["default", "cart"][at].to_owned()),
        }
    }

    /// The rules, one by one, as the specification has them.
    fn is_true(&self) -> bool {
        let Case { pod, service, claim, taken, host_network } = self;
        let selector =
            if service.selector.is_empty() { service.annotation.as_ref() } else { Some(&service.selector) };
        let labels = pairs_of(&pod.labels);
        let selected = selector.is_some_and(|selector| {
            pairs_of(selector).into_iter().all(|(key, value)| labels.get(&key) == Some(&value))
        });
        let claimed: BTreeMap<String, u16> = [("http", claim.http), ("admin", claim.admin)]
            .into_iter()
            .filter_map(|(name, number)| Some((name.to_owned(), number?)))
            .collect();
        let own = |n: &u8| *n == OWN.0 && claimed.values().any(|number| *number == OWN.1);
        [
            (pod.namespace, pod.name, pod.uid) == (claim.namespace, claim.name, claim.uid),
            claim.account.is_none_or(|account| account == pod.account.unwrap_or(0)),
            !service.external,
            selected,
            !pod.host_network || *host_network,
            !claim.ips.is_empty(),
            claim.ips.iter().all(|n| pod.ips.contains(n) && !taken.contains(n) && !own(n)),
            !claimed.is_empty(),
            claimed == resolve(pod, service),
        ]
        .into_iter()
        .all(|holds| holds)
    }
}

fn decided(case: &Case) -> Result<ClaimGrant, ClaimError> {
    let own = vec![(ip(OWN.0), OWN.1).into()];
    let policy = EndpointPolicy { manual: ManualEndpoints::Everywhere, own };
    let taken: Vec<IpAddr> = case.taken.iter().map(|n| ip(*n)).collect();
    let (pod, service) = (case.pod(), case.service());
    let evidence = Evidence {
        pod: &pod,
        service: &service,
        taken: &taken,
        policy: &policy,
        host_network: case.host_network,
    };
    decide(&case.claim(), evidence)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_claim_is_granted_exactly_if_every_part_of_it_is_true(case in cases()) {
        let decided = decided(&case);
        prop_assert_eq!(decided.is_ok(), case.is_true(), "{:?}", decided);
        match decided {
            Ok(grant) => {
                    let (leaving, host_network) = (case.pod.deleting, case.pod.host_network);
                    prop_assert_eq!(grant, ClaimGrant { mode: case.service.mode, leaving, host_network });
                }
            // Only a pod without an address may come back with the same claim.
            Err(ClaimError::Unavailable(_)) => prop_assert!(false, "all is known"),
            Err(ClaimError::TooEarly(_)) => prop_assert!(case.pod.ips.is_empty()),
            Err(ClaimError::Denied(text)) => prop_assert!(!text.is_empty() && !text.contains('\n')),
        }
    }
}

#[test]
fn the_model_sees_true_claims_often_enough() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let sampled = (0..1000).map(|_| cases().new_tree(&mut runner).unwrap().current());
    let granted = sampled.filter(|case| decided(case).is_ok()).count();
    assert!((100..900).contains(&granted), "{granted} of 1000");
}
