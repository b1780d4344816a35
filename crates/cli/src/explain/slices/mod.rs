//! `rouse explain slices`: prints the `EndpointSlice`s that the rules of KEP-1672 derive from Pods and Services.
//!
//! [`cluster_objects`] keeps the input; the core plans the slices of each Service; [`list`] prints them as a `List`, or
//! [`diff`] prints what would change.

mod cluster_objects;
mod diff;
mod list;

use std::collections::HashSet;

use rouse_core::slices::{self as core, EndpointSlice, Options, SlicePlan, reconcile};

use super::input::{Kind, Object, named, objects};
use super::notes::Notes;
use crate::args::{ExplainSlices, SlicesFormat};
use crate::input::InputSource;
use crate::{CommandError, Streams};
use cluster_objects::Scene;

/// The kinds that are read; others are skipped.
const NEEDED: [Kind; 4] = [Kind::Pod, Kind::Service, Kind::Node, Kind::EndpointSlice];

/// Runs `rouse explain slices`.
pub(super) fn run(args: &ExplainSlices, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let mut notes = Notes::default();
    let scene = read(args, streams, &mut notes)?;
    let options = Options {
        terminating_conditions: args.terminating_conditions,
        max_endpoints_per_slice: args.max_endpoints_per_slice,
    };
    let outcomes = plan(&scene, &options, &mut notes);
    scene.remark(&mut notes);
    notes.print(streams.err, &named(&NEEDED))?;
    match (args.diff, args.output) {
        (false, None | Some(SlicesFormat::Yaml)) => list::yaml(streams.out, &outcomes),
        (false, Some(SlicesFormat::Json)) => list::json(streams.out, &outcomes),
        (true, None) => diff::text(streams.out, &outcomes),
        (true, Some(SlicesFormat::Yaml)) => diff::yaml(streams.out, &outcomes),
        (true, Some(SlicesFormat::Json)) => diff::json(streams.out, &outcomes),
    }
    .map_err(CommandError::from)
}

/// Reads the input and drops its text: the kept data is much smaller.
fn read(args: &ExplainSlices, streams: &mut Streams<'_>, notes: &mut Notes) -> Result<Scene, CommandError> {
    let source = InputSource::load(&args.input.file, streams.stdin, &mut |text| notes.note(text))?;
    let mut scene = Scene::default();
    objects(&source, &NEEDED, notes, &mut |object, notes| match object {
        Object::Pod(pod) => scene.pod(*pod, notes),
        Object::Service(service) => scene.service(*service, notes),
        Object::Node(node) => scene.node(&node),
        Object::EndpointSlice(slice) => scene.slice(slice),
    })?;
    Ok(scene)
}

/// The planned changes of one Service's slices.
struct Outcome<'s> {
    service: &'s core::ServiceFacts,
    /// The existing slices.
    before: &'s [EndpointSlice],
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<EndpointSlice>,
    unchanged: Vec<EndpointSlice>,
}

impl Outcome<'_> {
    /// The slices after the changes.
    fn left_behind(&self) -> impl Iterator<Item = &EndpointSlice> {
        self.unchanged.iter().chain(&self.update).chain(&self.create)
    }
}

fn plan<'s>(scene: &'s Scene, options: &Options, notes: &mut Notes) -> Vec<Outcome<'s>> {
    let pods = scene.pods_by_label();
    let mut names = scene.slice_names();
    let mut outcomes = Vec::new();
    for (service, selector) in scene.services() {
        let before = scene.slices_of(service);
        let plan = reconcile(service, pods.selected(service, selector), scene.nodes(), before, options);
        warn_of_missing_nodes(service, &plan, notes);
        let create = plan.create.into_iter().map(|content| EndpointSlice {
            name: new_name(service, &mut names).into(),
            resource_version: "".into(),
            annotations: core::Labels::new(),
            content,
        });
        outcomes.push(Outcome {
            service,
            before,
            create: create.collect(),
            update: plan.update,
            delete: plan.delete,
            unchanged: plan.unchanged,
        });
    }
    outcomes
}

/// The first free name of `service-1`, `service-2`, …: the API server's random ending would change the output each time.
fn new_name(service: &core::ServiceFacts, taken: &mut HashSet<(String, String)>) -> String {
    let namespace = service.id.namespace();
    let mut names = (1_u64..).map(|ordinal| service.slice_name(&ordinal.to_string()));
    let free = names.find(|name| taken.insert((namespace.to_owned(), name.clone())));
    free.unwrap_or_else(|| service.generate_name())
}

fn warn_of_missing_nodes(service: &core::ServiceFacts, plan: &SlicePlan, notes: &mut Notes) {
    let Some(first) = plan.missing_nodes.first() else { return };
    let more = match plan.missing_nodes.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more pods likewise)"),
    };
    let node = if first.node.is_empty() {
        "it has no node yet".to_owned()
    } else {
        format!("node {} is not in the input", first.node)
    };
    notes.warn(format!(
        "service {}: pod {} is left out: {node}{more}; the rest is shown",
        service.id, first.pod
    ));
}
