//! Prints the difference between existing and planned slices: created, updated (field by field) and deleted.

use std::collections::BTreeSet;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use rouse_core::slices::{EndpointSlice, ListedEndpoint};
use serde::Serialize;
use serde_json::Value;

use super::Outcome;
use super::list::Object;
use crate::input::printable;
use rouse_config::document::emit;

/// The Services with changes.
#[derive(Debug, Serialize)]
struct Changes {
    services: Vec<ServiceChanges>,
}

#[derive(Debug, Serialize)]
struct ServiceChanges {
    service: String,
    create: Vec<Object>,
    update: Vec<Update>,
    delete: Vec<String>,
    unchanged: usize,
}

#[derive(Debug, Serialize)]
struct Update {
    name: String,
    changes: Vec<Change>,
}

/// One field; `null` where it was or will be absent.
#[derive(Debug, PartialEq, Serialize)]
struct Change {
    field: String,
    from: Value,
    to: Value,
}

/// Prints the changes as JSON.
pub(super) fn json(out: &mut dyn Write, outcomes: &[Outcome<'_>]) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &changes(outcomes)?)?;
    writeln!(out)
}

/// Prints the changes as YAML.
pub(super) fn yaml(out: &mut dyn Write, outcomes: &[Outcome<'_>]) -> io::Result<()> {
    emit::yaml(out, &serde_json::to_value(changes(outcomes)?)?, 0)
}

/// Prints the changes as text for people.
pub(super) fn text(out: &mut dyn Write, outcomes: &[Outcome<'_>]) -> io::Result<()> {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    let (bold, green) = (Style::new().bold(), colour(AnsiColor::Green));
    let (yellow, red) = (colour(AnsiColor::Yellow), colour(AnsiColor::Red));
    for outcome in outcomes {
        let counts = [(&outcome.create, "create"), (&outcome.update, "update"), (&outcome.delete, "delete")];
        let counts = counts.iter().filter(|(slices, _)| !slices.is_empty());
        let counts: Vec<String> = counts.map(|(slices, verb)| format!("{verb} {}", slices.len())).collect();
        let counts = if counts.is_empty() { "nothing to write".to_owned() } else { counts.join(", ") };
        let unchanged = outcome.unchanged.len();
        writeln!(
            out,
            "{bold}{}{bold:#}: {counts} ({unchanged} unchanged)",
            printable(&outcome.service.id.to_string())
        )?;
        for slice in &outcome.create {
            writeln!(out, "{green}  + create {}{green:#}", summary(slice))?;
            for endpoint in &slice.content.endpoints {
                writeln!(out, "{green}      {}{green:#}", printable(&described(endpoint)))?;
            }
        }
        for slice in &outcome.update {
            let update = update(outcome, slice)?;
            writeln!(out, "{yellow}  ~ update {}{yellow:#}", printable(&update.name))?;
            for Change { field, from, to } in &update.changes {
                writeln!(out, "      {}: {} → {}", printable(field), shown(from), shown(to))?;
            }
        }
        for slice in &outcome.delete {
            writeln!(out, "{red}  - delete {}{red:#}", summary(slice))?;
        }
    }
    Ok(())
}

fn shown(value: &Value) -> String {
    if value.is_null() { "absent".to_owned() } else { printable(&value.to_string()) }
}

/// `cart-1: IPv4, http 8080/TCP, 3 endpoints`.
fn summary(slice: &EndpointSlice) -> String {
    let content = &slice.content;
    let mut parts = vec![content.family.to_string()];
    for port in &content.ports {
        let number = port.number.map_or("any".to_owned(), |number| number.to_string());
        let name = if port.name.as_str().is_empty() { "(unnamed)" } else { port.name.as_str() };
        parts.push(format!("{name} {number}/{}", port.protocol));
    }
    parts.push(match content.endpoints.len() {
        0 => "no endpoints (a placeholder)".to_owned(),
        1 => "1 endpoint".to_owned(),
        many => format!("{many} endpoints"),
    });
    printable(&format!("{}: {}", slice.name, parts.join(", ")))
}

fn described(endpoint: &ListedEndpoint) -> String {
    let says = [
        ("ready", endpoint.conditions.ready),
        ("serving", endpoint.conditions.serving),
        ("terminating", endpoint.conditions.terminating),
    ];
    let says = says.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}")));
    format!("{} {}", label(endpoint), says.collect::<Vec<_>>().join(" "))
}

/// The name of an endpoint in a field's path: an index would mean another endpoint after each change.
fn label(endpoint: &ListedEndpoint) -> String {
    let address = endpoint.addresses.first().map_or("no address".to_owned(), ToString::to_string);
    match &endpoint.target {
        Some(target) => format!("{address} {}", target.name),
        None => address,
    }
}

fn changes(outcomes: &[Outcome<'_>]) -> io::Result<Changes> {
    let writes = |outcome: &&Outcome<'_>| {
        !(outcome.create.is_empty() && outcome.update.is_empty() && outcome.delete.is_empty())
    };
    let services = outcomes.iter().filter(writes).map(|outcome| {
        Ok(ServiceChanges {
            service: outcome.service.id.to_string(),
            create: outcome.create.iter().map(|slice| Object::new(slice, outcome.service)).collect(),
            update: outcome.update.iter().map(|slice| update(outcome, slice)).collect::<io::Result<_>>()?,
            delete: outcome.delete.iter().map(|slice| slice.name.to_string()).collect(),
            unchanged: outcome.unchanged.len(),
        })
    });
    Ok(Changes { services: services.collect::<io::Result<_>>()? })
}

/// The fields that the update to `after` changes.
fn update(outcome: &Outcome<'_>, after: &EndpointSlice) -> io::Result<Update> {
    let mut changes = Vec::new();
    if let Some(before) = outcome.before.iter().find(|before| before.name == after.name) {
        let (old, new) = (keyed(before, outcome)?, keyed(after, outcome)?);
        compare("", &old, &new, &mut changes);
    }
    Ok(Update { name: after.name.to_string(), changes })
}

/// The slice as an object whose endpoints are keyed by name instead of index.
fn keyed(slice: &EndpointSlice, outcome: &Outcome<'_>) -> io::Result<Value> {
    let mut object = serde_json::to_value(Object::new(slice, outcome.service))?;
    if let Value::Array(endpoints) = object["endpoints"].take() {
        let names = slice.content.endpoints.iter().map(label);
        object["endpoints"] = Value::Object(names.zip(endpoints).collect());
    }
    Ok(object)
}

/// Collects the differences between `from` and `to`, recursively while both are objects.
fn compare(path: &str, from: &Value, to: &Value, changes: &mut Vec<Change>) {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        if from != to {
            changes.push(Change { field: path.to_owned(), from: from.clone(), to: to.clone() });
        }
        return;
    };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let plain = key.chars().all(|c| c.is_ascii_alphanumeric());
        let path = match (plain, path.is_empty()) {
            (true, true) => key.clone(),
            (true, false) => format!("{path}.{key}"),
            (false, _) => format!("{path}[{key}]"),
        };
        let absent = Value::Null;
        compare(&path, old.get(key).unwrap_or(&absent), new.get(key).unwrap_or(&absent), changes);
    }
}
