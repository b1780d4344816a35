//! The results as a table for people.

use std::io::{self, Write};
use std::time::Duration;

use anstyle::Style;
use rouse_config::duration::HumanDuration;

use super::policies::Policy;
use super::run::{Outcome, Simulation};
use super::totals::Totals;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

/// The trace and its model, in one line each.
pub(super) fn title(out: &mut dyn Write, simulation: &Simulation<'_>) -> io::Result<()> {
    let (call_trace, model) = (simulation.call_trace, simulation.model);
    let calls: u64 = call_trace.services.iter().map(super::call_trace::Calls::count).sum();
    let (services, calls) = (grouped(call_trace.services.len() as u64), grouped(calls));
    let length = HumanDuration::from(call_trace.length);
    writeln!(
        out,
        "{BOLD}{}{BOLD:#}: {services} services with calls, {calls} calls in {length}",
        call_trace.name
    )?;
    let (start, request) = (HumanDuration::from(model.start_time), HumanDuration::from(model.request_time));
    writeln!(
        out,
        "A pod starts in {start}, a request takes {request}, and a pod should have {} at a time.",
        model.target
    )
}

/// One row for each policy.
pub(super) fn table(
    out: &mut dyn Write,
    simulation: &Simulation<'_>,
    outcomes: &[Outcome],
) -> io::Result<()> {
    title(out, simulation)?;
    if simulation.split > Duration::ZERO {
        let from = HumanDuration::from(simulation.split);
        writeln!(out, "The policies learn from the begin, and are judged from {from} on.")?;
    }
    writeln!(
        out,
        "\n{BOLD}{:<18}{:>12}{:>14}{:>14}{:>14}{BOLD:#}",
        "POLICY", "COLD STARTS", "WAITED", "POD-MINUTES", "IDLE"
    )?;
    let mut before: Option<&Outcome> = None;
    for outcome in outcomes {
        let kind = |outcome: &Outcome| std::mem::discriminant(&outcome.policy);
        let is_ours = |outcome: &Outcome| matches!(outcome.policy, Policy::Fixed(_) | Policy::Learned(_));
        if before.is_some_and(|before| kind(before) != kind(outcome) && is_ours(before)) {
            writeln!(out)?;
        }
        before = Some(outcome);
        row(out, &outcome.policy.to_string(), &outcome.parts[1])?;
    }
    writeln!(
        out,
        "\n{DIM}fixed: Rouse with this idle-after. learned: Rouse with this cold-start-cost. WAITED: the sum of all requests.\n\
         IDLE: pod-minutes in which no request needed the pod. docs/scaling.md says how KEDA and Knative are modelled.{DIM:#}"
    )
}

fn row(out: &mut dyn Write, name: &str, totals: &Totals) -> io::Result<()> {
    let (pods, idle) = (whole(totals.pod_minutes()), whole(totals.idle_pod_minutes()));
    let (cold, waited) = (grouped(totals.cold_starts), waited(totals.waited_seconds()));
    writeln!(out, "{name:<18}{cold:>12}{waited:>14}{pods:>14}{idle:>14}")
}

fn waited(seconds: f64) -> String {
    format!("{} s", whole(seconds))
}

/// A number without its fraction, with separators.
pub(super) fn whole(number: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a range that both types hold"
    )]
    let number = number.round().clamp(0.0, 1e18) as u64;
    grouped(number)
}

/// `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
