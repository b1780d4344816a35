//! The whole channel without a network: meters → readings → messages → rules of a stream → load table, under any interleaving of load,
//! reconnects, lost messages and restarts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use prost::Message as _;
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::{LoadGuard, LoadKey, LoadMeter};
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_core::scale::{LoadTable, Reporter};
use rouse_core::time::Clock as _;
use rouse_testkit::fakes::{CountingEngine, ManualClock};

use super::client::readings::{Cursor, Readings};
use super::stream_protocol::{StreamEvent, StreamProtocol};
use crate::proto::report::reporter_message::Kind;
use crate::proto::report::{Hello, ReporterMessage};

const GATEWAYS: usize = 2;
const CONTROLLERS: usize = 2;
/// More than one part of a state has.
const METERS: usize = 8;

/// A gateway: its meters, and what it wants to report.
struct Gateway {
    reporter: Reporter,
    boot: u64,
    registry: Arc<Registry>,
    meters: Vec<Arc<LoadMeter>>,
    present: Vec<(usize, LoadGuard)>,
    readings: Readings,
}

/// The stream of a gateway to a controller.
struct Stream {
    cursor: Cursor,
    protocol: StreamProtocol,
    /// What was sent and has not arrived.
    messages: VecDeque<Vec<u8>>,
}

struct Controller {
    table: LoadTable,
    /// The requests that each gateway has reported, by meter.
    requests: BTreeMap<(usize, LoadKey), u64>,
    /// What each gateway has prepared for zero.
    parked: BTreeMap<(usize, ServiceId), u64>,
}

struct World {
    clock: Arc<ManualClock>,
    gateways: Vec<Gateway>,
    controllers: Vec<Controller>,
    streams: BTreeMap<(usize, usize), Stream>,
    /// Whether every request since the start must be known.
    restarted: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Begin(usize, usize),
    End(usize, usize),
    /// A request that is shorter than any reading.
    Count(usize, usize),
    Park(usize, usize, u64),
    Read(usize),
    Pass(u64),
    Send(usize, usize),
    Deliver(usize, usize),
    /// The connection breaks: what is on the way is lost.
    Break(usize, usize),
    RestartController(usize),
    RestartGateway(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (gateway, controller, meter) = (|| 0..GATEWAYS, || 0..CONTROLLERS, || 0..METERS);
    prop_oneof![
        6 => (gateway(), meter()).prop_map(|(g, m)| Step::Begin(g, m)),
        5 => (gateway(), 0..64_usize).prop_map(|(g, n)| Step::End(g, n)),
        3 => (gateway(), meter()).prop_map(|(g, m)| Step::Count(g, m)),
        2 => (gateway(), meter(), 0..3_u64).prop_map(|(g, m, id)| Step::Park(g, m, id)),
        5 => gateway().prop_map(Step::Read),
        4 => (0..3000_u64).prop_map(Step::Pass),
        8 => (gateway(), controller()).prop_map(|(g, c)| Step::Send(g, c)),
        8 => (gateway(), controller()).prop_map(|(g, c)| Step::Deliver(g, c)),
        2 => (gateway(), controller()).prop_map(|(g, c)| Step::Break(g, c)),
        1 => controller().prop_map(Step::RestartController),
        1 => gateway().prop_map(Step::RestartGateway),
    ]
}

fn service(n: usize) -> ServiceId {
    ServiceId::new("shop", &format!("service-{n}")).unwrap()
}

impl Gateway {
    fn new(n: usize, boot: u64, clock: &Arc<ManualClock>) -> Self {
        let engine = Arc::<CountingEngine>::default();
        let registry = Registry::new(RegistrySettings::default(), Arc::clone(clock) as _, engine);
        let meter = |n: usize| match n % 2 {
            0 => Arc::clone(registry.service(&service(n)).meter()),
            _ => registry.route_meter(format!("shop/route-{n}").into()),
        };
        let meters = (0..METERS).map(meter).collect();
        let reporter = Reporter::new(&format!("gateway-{n}"));
        Self { reporter, boot, registry, meters, present: Vec::new(), readings: Readings::default() }
    }

    fn read(&mut self) {
        self.readings.read(self.registry.loads().read());
    }
}

impl Controller {
    fn new(clock: &ManualClock) -> Self {
        Self { table: LoadTable::new(clock.now()), requests: BTreeMap::new(), parked: BTreeMap::new() }
    }
}

impl World {
    fn new() -> Self {
        let clock = Arc::<ManualClock>::default();
        let mut world = Self {
            gateways: (0..GATEWAYS).map(|n| Gateway::new(n, 1, &clock)).collect(),
            controllers: (0..CONTROLLERS).map(|_| Controller::new(&clock)).collect(),
            streams: BTreeMap::new(),
            clock,
            restarted: false,
        };
        // Before there is any load, so that all of it must be known.
        world.settle();
        world
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Begin(g, m) => {
                let gateway = &mut self.gateways[g];
                gateway.present.push((m, gateway.meters[m].begin()));
            }
            Step::End(g, n) => {
                let present = &mut self.gateways[g].present;
                if !present.is_empty() {
                    present.swap_remove(n % present.len());
                }
            }
            Step::Count(g, m) => self.gateways[g].meters[m].count(),
            Step::Park(g, m, id) => {
                self.gateways[g].readings.park(&service(m), (id > 0).then_some(id));
            }
            Step::Read(g) => self.gateways[g].read(),
            Step::Pass(milliseconds) => self.clock.advance(Duration::from_millis(milliseconds)),
            Step::Send(g, c) => self.send(g, c),
            Step::Deliver(g, c) => self.deliver(g, c),
            Step::Break(g, c) => _ = self.streams.remove(&(g, c)),
            Step::RestartController(c) => {
                self.controllers[c] = Controller::new(&self.clock);
                self.streams.retain(|(_, of), _| *of != c);
                self.restarted = true;
            }
            Step::RestartGateway(g) => {
                self.gateways[g] = Gateway::new(g, self.gateways[g].boot + 1, &self.clock);
                self.streams.retain(|(of, _), _| *of != g);
                self.restarted = true;
            }
        }
    }

    fn send(&mut self, g: usize, c: usize) {
        let gateway = &self.gateways[g];
        let stream = self.streams.entry((g, c)).or_insert_with(|| {
            let hello = Hello { boot: gateway.boot, ..Hello::default() };
            let hello = ReporterMessage { kind: Some(Kind::Hello(hello)) };
            Stream {
                cursor: gateway.readings.cursor(),
                protocol: StreamProtocol::new(self.clock.now()),
                messages: VecDeque::from([hello.encode_to_vec()]),
            }
        });
        let loads = gateway.readings.next_message(&mut stream.cursor, self.clock.now());
        stream.messages.push_back(ReporterMessage { kind: Some(Kind::Loads(loads)) }.encode_to_vec());
    }

    fn deliver(&mut self, g: usize, c: usize) {
        let Some(stream) = self.streams.get_mut(&(g, c)) else { return };
        let Some(message) = stream.messages.pop_front() else { return };
        // Many messages in no time are allowed here.
        self.clock.advance(Duration::from_millis(10));
        let heard = stream.protocol.take_encoded(&message, self.clock.now()).unwrap();
        let StreamEvent::Loads { update, parked, .. } = heard else { return };
        let controller = &mut self.controllers[c];
        let changes = controller.table.heard(self.clock.now(), &self.gateways[g].reporter, update);
        assert_eq!(changes.refused, 0);
        for change in changes.changes {
            *controller.requests.entry((g, change.key)).or_default() += change.report.requests;
        }
        if parked {
            controller.parked.retain(|(of, _), _| *of != g);
            let all = stream.protocol.parked().iter().map(|(service, id)| ((g, service.clone()), *id));
            controller.parked.extend(all);
        }
    }

    /// The network works, and a second passes.
    fn settle(&mut self) {
        self.clock.advance(Duration::from_secs(1));
        for g in 0..GATEWAYS {
            self.gateways[g].read();
            for c in 0..CONTROLLERS {
                loop {
                    self.send(g, c);
                    let stream = &self.streams[&(g, c)];
                    if !self.gateways[g].readings.has_news(&stream.cursor) {
                        break;
                    }
                }
                while !self.streams[&(g, c)].messages.is_empty() {
                    self.deliver(g, c);
                }
            }
        }
    }

    fn check(&self) {
        for (c, controller) in self.controllers.iter().enumerate() {
            for m in 0..METERS {
                let key = self.gateways[0].meters[m].key();
                let all: u64 =
                    self.gateways.iter().map(|gateway| u64::from(gateway.meters[m].present())).sum();
                assert_eq!(controller.table.present(key).total(), all, "{key} at controller {c}");
            }
            for (g, gateway) in self.gateways.iter().enumerate() {
                for meter in &gateway.meters {
                    let present = controller.table.present_at(&gateway.reporter, meter.key());
                    assert_eq!(present.total(), u64::from(meter.present()), "{} of gateway {g}", meter.key());
                    let reported = controller.requests.get(&(g, meter.key().clone())).copied();
                    let exact = self.restarted || reported.unwrap_or_default() == meter.requests();
                    assert!(exact, "{}: {reported:?} of {} requests", meter.key(), meter.requests());
                }
                let parked = (0..METERS).filter_map(|m| Some((m, gateway.readings.parked_id(&service(m))?)));
                let expected: Vec<(usize, u64)> = parked.collect();
                let found = |m: usize| controller.parked.get(&(g, service(m))).map(|id| (m, *id));
                assert_eq!((0..METERS).filter_map(found).collect::<Vec<_>>(), expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn once_the_network_works_controllers_know_the_load_of_all_gateways(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.run(&step);
        }
        world.settle();
        world.check();
    }
}

#[test]
fn a_state_of_several_parts_arrives_as_one_and_a_restarted_gateway_leaves_nothing_behind() {
    let mut world = World::new();
    for m in 0..METERS {
        world.run(&Step::Begin(0, m));
    }
    world.run(&Step::RestartController(1));
    world.settle();
    world.check();
    world.run(&Step::RestartGateway(0));
    world.settle();
    world.check();
}
