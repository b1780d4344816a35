//! Which Envoys send requests past the gateways, and whether their load is known: what all xds replicas say of them, merged.
//!
//! An Envoy keeps its configuration when it loses its control plane, and goes on sending requests to pods. So the load of its services is
//! unknown until an Envoy with the same identity reports again, at any replica.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::report::Reporter;
use crate::endpoint::ServiceId;
use crate::time::Moment;

/// How long the load of an Envoy counts as unknown after it was heard last.
pub const ENVOY_MEMORY: Duration = Duration::from_mins(10);
/// The most Envoys of one xds replica that are told apart.
pub const MAX_ENVOYS: usize = 4096;
/// The longest SAN and node id of an Envoy, in bytes.
pub const MAX_ENVOY_NAME: usize = 256;
/// The most services of one Envoy that are named. One with more concerns all services.
pub const MAX_ENVOY_SERVICES: usize = 256;
/// The most xds replicas that are remembered after they have left.
const MAX_LEFT: usize = 64;

/// Identifies an Envoy: the name that its certificate proves, and the node id that it claims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvoyId {
    /// A SAN of its certificate; empty without a certificate.
    pub san: Arc<str>,
    /// Its node id.
    pub node: Arc<str>,
}

impl EnvoyId {
    /// The Envoy with this name and node id. Both come from outside: control characters are left out, and a text of more than
    /// [`MAX_ENVOY_NAME`] bytes is cut, since reports to controllers have none of these.
    pub fn new(san: &str, node: &str) -> Self {
        Self { san: named(san), node: named(node) }
    }
}

fn named(text: &str) -> Arc<str> {
    let mut name = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if name.len() + letter.len_utf8() > MAX_ENVOY_NAME {
            break;
        }
        name.push(letter);
    }
    name.into()
}

impl fmt::Display for EnvoyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.san.is_empty() {
            write!(f, "{}", self.node)
        } else {
            write!(f, "{} ({})", self.node, self.san)
        }
    }
}

/// The services to which an Envoy may send requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvoyServices {
    /// These.
    Named(BTreeSet<ServiceId>),
    /// Any: they are too many to be named, or are not known.
    All,
}

impl Default for EnvoyServices {
    fn default() -> Self {
        Self::Named(BTreeSet::new())
    }
}

impl EnvoyServices {
    /// Adds a service. Beyond [`MAX_ENVOY_SERVICES`], all services are concerned.
    pub fn add(&mut self, service: &ServiceId) {
        let Self::Named(named) = self else { return };
        if !named.contains(service) {
            named.insert(service.clone());
            if named.len() > MAX_ENVOY_SERVICES {
                *self = Self::All;
            }
        }
    }

    /// Adds those of another.
    pub fn extend(&mut self, other: &Self) {
        match other {
            Self::All => *self = Self::All,
            Self::Named(named) => named.iter().for_each(|service| self.add(service)),
        }
    }
}

/// Whether the load of an Envoy is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvoyLoad {
    /// It reports.
    Reported,
    /// It does not, since this moment.
    Silent {
        /// When it was heard last, or when it was noticed that it does not report.
        since: Moment,
    },
}

/// What an xds replica knows of an Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyState {
    /// Whether its load is known.
    pub load: EnvoyLoad,
    /// The services to which it may send requests.
    pub services: EnvoyServices,
}

/// What an xds replica says of its Envoys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvoyUpdate {
    /// Whether it names all: one that is missing is not known any more.
    pub complete: bool,
    /// Those that have changed. `None`: not known any more.
    pub envoys: Vec<(EnvoyId, Option<EnvoyState>)>,
}

/// Services whose load is unknown, each with one of the Envoys that may send them requests and do not report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SilentEnvoys {
    /// An Envoy that may send requests to all services.
    all: Option<EnvoyId>,
    by_service: HashMap<ServiceId, EnvoyId>,
    /// How many Envoys are silent.
    pub count: usize,
}

impl SilentEnvoys {
    /// The first Envoy that may send requests to one of these services and does not report.
    pub fn of<'a>(&self, services: impl IntoIterator<Item = &'a ServiceId>) -> Option<&EnvoyId> {
        services.into_iter().filter_map(|service| self.by_service.get(service)).chain(&self.all).min()
    }

    fn add(&mut self, id: &EnvoyId, services: &EnvoyServices) {
        self.count += 1;
        let first = |known: &mut EnvoyId| {
            if id < known {
                id.clone_into(known);
            }
        };
        match services {
            EnvoyServices::All => first(self.all.get_or_insert_with(|| id.clone())),
            EnvoyServices::Named(named) => {
                for service in named {
                    first(self.by_service.entry(service.clone()).or_insert_with(|| id.clone()));
                }
            }
        }
    }
}

/// What one xds replica has said.
#[derive(Debug, Clone, Default)]
struct ReplicaEnvoys {
    /// When it left: its Envoys are silent since then, unless another replica hears them.
    left: Option<Moment>,
    envoys: BTreeMap<EnvoyId, EnvoyState>,
}

/// The Envoys of all xds replicas.
#[derive(Debug, Clone, Default)]
pub struct EnvoyTable {
    replicas: BTreeMap<Reporter, ReplicaEnvoys>,
}

impl EnvoyTable {
    /// Takes what a replica says. Returns whether something has changed.
    pub fn update(&mut self, from: &Reporter, update: EnvoyUpdate) -> bool {
        if !update.complete && update.envoys.is_empty() {
            return false;
        }
        let replica = self.replicas.entry(from.clone()).or_default();
        let before = update.complete.then(|| std::mem::take(&mut replica.envoys));
        let returned = update.complete && replica.left.take().is_some();
        let mut changed = false;
        for (id, state) in update.envoys {
            changed |= match state {
                Some(state) => replica.envoys.insert(id, state.clone()) != Some(state),
                None => replica.envoys.remove(&id).is_some(),
            };
        }
        returned || before.map_or(changed, |before| before != replica.envoys)
    }

    /// The stream of a replica has ended. Its Envoys are silent until another one hears them, or for [`ENVOY_MEMORY`].
    pub fn left(&mut self, now: Moment, from: &Reporter) {
        match self.replicas.get_mut(from) {
            Some(replica) if replica.envoys.is_empty() => drop(self.replicas.remove(from)),
            Some(replica) => replica.left = Some(replica.left.unwrap_or(now)),
            None => return,
        }
        let mut left: Vec<(Moment, Reporter)> =
            self.replicas.iter().filter_map(|(name, replica)| Some((replica.left?, name.clone()))).collect();
        left.sort();
        let surplus = left.len().saturating_sub(MAX_LEFT);
        for (_, name) in left.into_iter().take(surplus) {
            self.replicas.remove(&name);
        }
    }

    /// Forgets replicas that left [`ENVOY_MEMORY`] ago. Returns whether there was one.
    pub fn forget(&mut self, now: Moment) -> bool {
        let before = self.replicas.len();
        self.replicas.retain(|_, replica| replica.left.is_none_or(|left| now < left + ENVOY_MEMORY));
        self.replicas.len() != before
    }

    /// When [`EnvoyTable::forget`] is due next.
    pub fn next_due(&self) -> Option<Moment> {
        self.replicas.values().filter_map(|replica| replica.left).map(|left| left + ENVOY_MEMORY).min()
    }

    /// How many Envoys are known, silent or not.
    pub fn len(&self) -> usize {
        self.replicas.values().flat_map(|replica| replica.envoys.keys()).collect::<BTreeSet<_>>().len()
    }

    /// Whether no Envoy is known.
    pub fn is_empty(&self) -> bool {
        self.replicas.values().all(|replica| replica.envoys.is_empty())
    }

    /// The Envoys whose load no replica knows.
    pub fn silent(&self) -> SilentEnvoys {
        let (mut heard, mut silent) = (BTreeSet::new(), BTreeMap::<&EnvoyId, EnvoyServices>::new());
        for replica in self.replicas.values() {
            for (id, state) in &replica.envoys {
                if replica.left.is_none() && state.load == EnvoyLoad::Reported {
                    heard.insert(id);
                } else {
                    silent.entry(id).or_default().extend(&state.services);
                }
            }
        }
        let mut all = SilentEnvoys::default();
        for (id, services) in silent.into_iter().filter(|(id, _)| !heard.contains(id)) {
            all.add(id, &services);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    fn service(name: &str) -> ServiceId {
        ServiceId::new("shop", name).unwrap()
    }

    fn envoy(name: &str) -> EnvoyId {
        EnvoyId::new("spiffe://a/envoy", name)
    }

    #[test]
    fn an_id_has_no_control_characters_and_is_cut_at_a_letter() {
        let long = format!("{}\u{e9}\n{}", "a".repeat(255), "b".repeat(1000));
        let id = EnvoyId::new(&long, "edge\n-1\t");
        assert_eq!((&*id.san, &*id.node), (&*"a".repeat(255), "edge-1"));
    }

    fn state(reports: bool, services: &[&str]) -> EnvoyState {
        let load = if reports { EnvoyLoad::Reported } else { EnvoyLoad::Silent { since: at(0) } };
        let services = EnvoyServices::Named(services.iter().map(|name| service(name)).collect());
        EnvoyState { load, services }
    }

    fn say(
        table: &mut EnvoyTable,
        from: &str,
        complete: bool,
        envoys: &[(&str, Option<EnvoyState>)],
    ) -> bool {
        let envoys = envoys.iter().map(|(name, state)| (envoy(name), state.clone())).collect();
        table.update(&Reporter::new(from), EnvoyUpdate { complete, envoys })
    }

    fn silent(table: &EnvoyTable, name: &str) -> Option<String> {
        table.silent().of([&service(name)]).map(|id| id.node.to_string())
    }

    #[test]
    fn a_silent_envoy_concerns_its_services_only() {
        let mut table = EnvoyTable::default();
        assert!(say(
            &mut table,
            "x",
            true,
            &[("e", Some(state(false, &["cart"]))), ("f", Some(state(true, &["till"])))]
        ));
        assert_eq!(silent(&table, "cart").as_deref(), Some("e"));
        assert_eq!((silent(&table, "till"), table.silent().count, table.len()), (None, 1, 2));
        let all = Some(EnvoyState { services: EnvoyServices::All, ..state(false, &[]) });
        assert!(say(&mut table, "x", false, &[("g", all)]));
        assert_eq!(silent(&table, "till").as_deref(), Some("g"));
        assert_eq!(silent(&table, "cart").as_deref(), Some("e"), "the first of two");
        assert!(say(&mut table, "x", false, &[("g", None), ("e", None)]));
        assert_eq!(silent(&table, "cart"), None);
    }

    #[test]
    fn an_envoy_that_any_replica_hears_is_not_silent() {
        let mut table = EnvoyTable::default();
        say(&mut table, "x", true, &[("e", Some(state(false, &["cart"])))]);
        say(&mut table, "y", true, &[("e", Some(state(true, &["cart"])))]);
        assert_eq!(silent(&table, "cart"), None);
        say(&mut table, "y", false, &[("e", Some(state(false, &["cart"])))]);
        assert!(silent(&table, "cart").is_some());
    }

    #[test]
    fn the_envoys_of_a_replica_that_left_are_silent_until_another_hears_them_or_ten_minutes_passed() {
        let mut table = EnvoyTable::default();
        say(
            &mut table,
            "x",
            true,
            &[("e", Some(state(true, &["cart"]))), ("f", Some(state(true, &["till"])))],
        );
        table.left(at(100), &Reporter::new("x"));
        assert!(silent(&table, "cart").is_some() && silent(&table, "till").is_some());
        say(&mut table, "y", true, &[("e", Some(state(true, &["cart"])))]);
        assert!(silent(&table, "cart").is_none() && silent(&table, "till").is_some());
        assert_eq!(table.next_due(), Some(at(700)));
        assert!(!table.forget(at(699)) && table.forget(at(700)));
        assert_eq!(silent(&table, "till"), None);
    }

    #[test]
    fn a_replica_that_comes_back_says_what_it_knows_now() {
        let mut table = EnvoyTable::default();
        say(
            &mut table,
            "x",
            true,
            &[("e", Some(state(true, &["cart"]))), ("f", Some(state(true, &["till"])))],
        );
        table.left(at(100), &Reporter::new("x"));
        assert!(say(&mut table, "x", true, &[("e", Some(state(true, &["cart"])))]));
        assert_eq!((table.silent().count, table.len(), table.next_due()), (0, 1, None));
        assert!(!say(&mut table, "x", true, &[("e", Some(state(true, &["cart"])))]), "nothing is new");
        assert!(!say(&mut table, "x", false, &[]), "a heartbeat");
    }

    #[test]
    fn an_envoy_of_more_services_than_are_named_concerns_all() {
        let mut services = EnvoyServices::default();
        (0..=MAX_ENVOY_SERVICES).for_each(|n| services.add(&service(&format!("s{n}"))));
        assert_eq!(services, EnvoyServices::All);
    }

    #[test]
    fn replicas_that_left_long_ago_do_not_fill_the_memory() {
        let mut table = EnvoyTable::default();
        for n in 0..100 {
            say(&mut table, &format!("x{n}"), true, &[("e", Some(state(true, &["cart"])))]);
            table.left(at(n), &Reporter::new(&format!("x{n}")));
        }
        assert_eq!(table.replicas.len(), MAX_LEFT);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Say { replica: usize, envoy: usize, reports: Option<bool> },
        Leave(usize),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..3_usize, 0..3_usize, prop::option::of(any::<bool>()))
                .prop_map(|(replica, envoy, reports)| Step::Say { replica, envoy, reports }),
            1 => (0..3_usize).prop_map(Step::Leave),
            1 => (0..900_u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn an_envoy_is_silent_exactly_if_no_replica_hears_it_and_one_remembers_it(
            steps in prop::collection::vec(step(), 0..40)
        ) {
            let (mut table, mut now) = (EnvoyTable::default(), 0);
            // By replica and Envoy: whether it reports; and when each replica left.
            let mut model = BTreeMap::<(usize, usize), bool>::new();
            let mut left = BTreeMap::<usize, u64>::new();
            for step in steps {
                match step {
                    Step::Say { replica, envoy, reports } => {
                        // The first message after a return is complete.
                        let complete = left.remove(&replica).is_some();
                        if complete {
                            model.retain(|(of, _), _| *of != replica);
                        }
                        match reports {
                            Some(reports) => drop(model.insert((replica, envoy), reports)),
                            None => drop(model.remove(&(replica, envoy))),
                        }
                        let state = reports.map(|reports| state(reports, &["cart"]));
                        say(&mut table, &format!("x{replica}"), complete, &[(&format!("e{envoy}"), state)]);
                    }
                    Step::Leave(replica) => {
                        table.left(at(now), &Reporter::new(&format!("x{replica}")));
                        left.entry(replica).or_insert(now);
                    }
                    Step::Pass(seconds) => now += seconds,
                }
                table.forget(at(now));
                model.retain(|(of, _), _| left.get(of).is_none_or(|left| now < left + 600));
                let heard = |envoy| model.iter().any(|((of, id), reports)| *id == envoy && *reports && !left.contains_key(of));
                let expected = (0..3).filter(|envoy| model.keys().any(|(_, id)| id == envoy) && !heard(*envoy)).count();
                prop_assert_eq!(table.silent().count, expected);
            }
        }
    }
}
