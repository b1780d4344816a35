//! `rouse explain endpoints`: the state of each endpoint of the slices, as if the gateway trusted all of them.
//!
//! Each slice is reduced to what routing needs when it is read. Then each service is merged as in the gateway, and printed
//! before the next one.

mod report;
mod text;
mod why;

use std::collections::HashMap;
use std::io::{self, Write};

use rouse_core::endpoint::{PortName, ServiceId, Slice};
use rouse_kube::objects::routable_slice::{Unroutable, routable};
use rouse_kube::objects::{EndpointSlice, Protocol, Service};
use serde::Serialize;

use super::OneByOne;
use super::input::{Kind, Object, named, objects};
use super::notes::Notes;
use crate::args::{EndpointsFormat, ExplainEndpoints};
use crate::input::InputSource;
use crate::{CommandError, Streams};
use report::ServiceReport;

/// The kinds that are read; others are skipped.
const NEEDED: [Kind; 2] = [Kind::EndpointSlice, Kind::Service];

/// Runs `rouse explain endpoints`.
pub(super) fn run(args: &ExplainEndpoints, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let mut notes = Notes::default();
    let found = read(args, streams, &mut notes)?;
    if found.services.is_empty() {
        notes.note("no service in the input: nothing to explain");
    }
    notes.print(streams.err, &named(&NEEDED))?;
    let reports = found.services.into_iter().map(ServiceReport::of);
    match args.output {
        EndpointsFormat::Text => text::print(streams.out, reports),
        EndpointsFormat::Json => json(streams.out, reports),
    }
    .map_err(CommandError::from)
}

/// Reads the input and drops its text: the kept data is much smaller.
fn read(
    args: &ExplainEndpoints,
    streams: &mut Streams<'_>,
    notes: &mut Notes,
) -> Result<Found, CommandError> {
    let source = InputSource::load(&args.input.file, streams.stdin, &mut |text| notes.note(text))?;
    let mut found = Found::default();
    objects(&source, &NEEDED, notes, &mut |object, notes| match object {
        Object::EndpointSlice(slice) => found.slice(&slice, notes),
        Object::Service(service) => found.service(&service, notes),
        Object::Pod(_) | Object::Node(_) => {}
    })?;
    Ok(found)
}

/// The services in the input, in order of first appearance.
#[derive(Debug, Default)]
struct Found {
    services: Vec<FoundService>,
    places: HashMap<ServiceId, usize>,
    /// The index of each slice among those of its service.
    slice_places: HashMap<(ServiceId, String), usize>,
}

/// One service in the input.
#[derive(Debug)]
struct FoundService {
    id: ServiceId,
    /// Remarks about its kind of Service.
    remarks: Vec<String>,
    /// Named by the Service or by a slice, in order of first appearance.
    ports: Vec<PortName>,
    slices: Vec<(String, Slice)>,
    warned_of_fqdn: bool,
}

impl Found {
    fn slice(&mut self, slice: &EndpointSlice, notes: &mut Notes) {
        let (namespace, name) = (slice.metadata.namespace(), &slice.metadata.name);
        let id = slice.service_name().and_then(|service| ServiceId::new(namespace, service).ok());
        let Some(id) = id else {
            let label = rouse_core::slices::SERVICE_NAME;
            notes.warn(format!(
                "EndpointSlice {namespace}/{name} belongs to no service: it has no label {label}"
            ));
            return;
        };
        let key = (id.clone(), name.clone());
        let place = self.slice_places.get(&key).copied();
        let service = self.of(id);
        let mut report = |problem: Unroutable| match problem {
            Unroutable::Fqdn if service.warned_of_fqdn => {}
            Unroutable::Fqdn => {
                service.warned_of_fqdn = true;
                notes.warn(format!("service {}: {problem}", service.id));
            }
            _ => notes.warn(format!("EndpointSlice {namespace}/{name}: {problem}")),
        };
        let routable = routable(slice, &mut report);
        for port in &routable.ports {
            service.port(&port.name);
        }
        if let Some(earlier) = place.and_then(|place| service.slices.get_mut(place)) {
            notes.warn(format!("EndpointSlice {namespace}/{name} appears twice; the later one counts"));
            earlier.1 = routable;
        } else {
            service.slices.push((name.clone(), routable));
            let place = service.slices.len() - 1;
            self.slice_places.insert(key, place);
        }
    }

    fn service(&mut self, service: &Service, notes: &mut Notes) {
        let Ok(id) = service.metadata.service_id() else {
            notes.warn(format!("Service {:?} has no usable name and is left out", service.metadata.name));
            return;
        };
        let found = self.of(id);
        found.remarks = why::remarks(service);
        for port in service.spec.ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
            found.port(&PortName::new(&port.name));
        }
    }

    fn of(&mut self, id: ServiceId) -> &mut FoundService {
        let place = *self.places.entry(id.clone()).or_insert(self.services.len());
        if place == self.services.len() {
            self.services.push(FoundService::new(id));
        }
        &mut self.services[place]
    }
}

impl FoundService {
    fn new(id: ServiceId) -> Self {
        Self { id, remarks: vec![], ports: vec![], slices: vec![], warned_of_fqdn: false }
    }

    fn port(&mut self, name: &PortName) {
        if !self.ports.contains(name) {
            self.ports.push(name.clone());
        }
    }
}

fn json(out: &mut dyn Write, reports: impl Iterator<Item = ServiceReport>) -> io::Result<()> {
    #[derive(Serialize)]
    struct Answer<S> {
        services: S,
    }

    serde_json::to_writer_pretty(&mut *out, &Answer { services: OneByOne::new(reports) })?;
    writeln!(out)
}
