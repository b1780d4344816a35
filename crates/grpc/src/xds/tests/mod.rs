//! Property: whatever changes, and whatever a client asks, accepts and rejects, on however many streams: when all is quiet it has what it
//! subscribed to. Nothing is sent twice without a reason, and no route comes before its clusters.

mod client;
mod world;

use proptest::prelude::*;

use super::resource_type::ResourceType;
use client::{Client, Manners};
use world::World;

/// One thing that happens.
#[derive(Debug, Clone)]
enum Step {
    Cluster(usize, u8),
    RemoveCluster(usize),
    Endpoints(usize, Option<u8>),
    Listener(usize, Option<u8>),
    Route(usize, Option<u8>),
    Subscribe(ResourceType, usize),
    Unsubscribe(ResourceType, usize),
    Star(ResourceType),
    Unstar(ResourceType),
    /// The server takes the next request.
    Request,
    /// The client takes the next response, and accepts it or not.
    Response {
        accept: bool,
    },
    /// The server looks at what changed.
    Wake,
    Reconnect,
    /// So much time passes, in seconds.
    Pass(u64),
}

fn kind() -> impl Strategy<Value = ResourceType> {
    proptest::sample::select(ResourceType::ALL.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    let content = || proptest::option::weighted(0.8, 0..3_u8);
    prop_oneof![
        3 => (0..world::NAMES, 0..3_u8).prop_map(|(name, content)| Step::Cluster(name, content)),
        2 => (0..world::NAMES).prop_map(Step::RemoveCluster),
        3 => (0..world::NAMES, content()).prop_map(|(name, content)| Step::Endpoints(name, content)),
        1 => (0..world::NAMES, content()).prop_map(|(name, content)| Step::Listener(name, content)),
        4 => (0..world::NAMES, proptest::option::weighted(0.9, 0..16_u8)).prop_map(|(name, clusters)| Step::Route(name, clusters)),
        3 => (kind(), 0..world::NAMES).prop_map(|(kind, name)| Step::Subscribe(kind, name)),
        1 => (kind(), 0..world::NAMES).prop_map(|(kind, name)| Step::Unsubscribe(kind, name)),
        1 => kind().prop_map(Step::Star),
        1 => kind().prop_map(Step::Unstar),
        12 => Just(Step::Request),
        10 => prop::bool::weighted(0.85).prop_map(|accept| Step::Response { accept }),
        6 => Just(Step::Wake),
        1 => Just(Step::Reconnect),
        1 => (0..4_u64).prop_map(Step::Pass),
    ]
}

fn walk(manners: Manners, bound: usize, steps: Vec<Step>) {
    let mut world = World::new();
    let mut client = Client::new(manners, bound);
    for step in steps {
        match step {
            Step::Cluster(name, content) => world.set_cluster(name, content),
            Step::RemoveCluster(name) => world.remove_cluster(name),
            Step::Endpoints(name, content) => world.set(ResourceType::Endpoints, name, content),
            Step::Listener(name, content) => world.set(ResourceType::Listener, name, content),
            Step::Route(name, clusters) => world.set_route(name, clusters),
            Step::Subscribe(kind, name) => client.subscribe(kind, world::name(name)),
            Step::Unsubscribe(kind, name) => client.unsubscribe(kind, world::name(name)),
            Step::Star(kind) => client.star(kind),
            Step::Unstar(kind) => client.unstar(kind),
            Step::Request => _ = client.server_takes_request(&world.cache),
            Step::Response { accept } => _ = client.takes_response(accept),
            Step::Wake => client.server_responds(&world.cache),
            Step::Reconnect => client.reconnect(),
            Step::Pass(seconds) => client.pass(seconds),
        }
    }
    client.settle(&world.cache);
    client.check_settled(&world.cache);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn when_all_is_quiet_any_client_has_what_it_subscribed_to(
        bound in prop_oneof![Just(1_usize), Just(9), Just(1000)],
        steps in prop::collection::vec(step(), 0..150),
    ) {
        walk(Manners::Any, bound, steps);
    }

    #[test]
    fn a_client_that_uses_all_types_as_envoy_does_never_has_a_route_without_its_clusters(
        bound in prop_oneof![Just(1_usize), Just(9), Just(1000)],
        steps in prop::collection::vec(step(), 0..150),
    ) {
        walk(Manners::AsEnvoy, bound, steps);
    }
}
