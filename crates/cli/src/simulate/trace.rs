//! Reads a trace: a CSV file with the calls per minute of each function, as the Azure Functions trace of 2019 has them.
//!
//! Columns `HashOwner,HashApp,HashFunction`, then `Trigger` if the file has it, then one column per minute. The public files
//! have the minutes 1 to 1440; a part of one may begin later. No field has quotes.

use std::io::BufRead;

use super::call_trace::{CallTrace, Calls, MINUTE, Placement};
use crate::CommandError;

const NAMES: [&str; 3] = ["HashOwner", "HashApp", "HashFunction"];
const TRIGGER: &str = "Trigger";
/// The trigger whose calls come at equal distances.
const TIMER: &str = "timer";
/// A week.
const MOST_MINUTES: usize = 7 * 24 * 60;
/// More than any public file has.
const MOST_FUNCTIONS: usize = 1_000_000;
/// The longest line: a week of ten-digit numbers.
const LONGEST_LINE: u64 = 200_000;

/// Which functions of a trace are read, and how.
#[derive(Debug, Clone, Default)]
pub(super) struct TraceOptions {
    /// Only functions with one of these triggers; empty: all.
    pub(super) triggers: Vec<String>,
    /// When the calls of a minute come; `None`: timers evenly, all others at random.
    pub(super) placed: Option<Placement>,
    pub(super) seed: u64,
}

/// The columns of a file.
struct Columns {
    has_trigger: bool,
    minutes: usize,
}

/// Reads all of `input`. `name` is what errors call it.
pub(super) fn read(
    input: &mut dyn BufRead,
    name: &str,
    options: &TraceOptions,
) -> Result<CallTrace, CommandError> {
    let mut lines = Lines { input, name, line: String::new(), number: 0 };
    if !lines.next()? {
        return Err(lines.refuse(1, "the file is empty: expected the names of the columns"));
    }
    let columns = lines.columns()?;
    if !columns.has_trigger && !options.triggers.is_empty() {
        return Err(lines.refuse(4, "the file has no column Trigger: leave --trigger out"));
    }
    let mut services = Vec::new();
    let mut triggers = Vec::new();
    while lines.next()? {
        if lines.line.is_empty() {
            continue;
        }
        if services.len() >= MOST_FUNCTIONS {
            return Err(lines.refuse(1, &format!("more than {MOST_FUNCTIONS} functions")));
        }
        let (trigger, counts) = lines.function(&columns)?;
        if !triggers.contains(&trigger) && triggers.len() < 100 {
            triggers.push(trigger.clone());
        }
        let wanted = options.triggers.is_empty() || options.triggers.contains(&trigger);
        if wanted && !counts.is_empty() {
            let default = if trigger == TIMER { Placement::Even } else { Placement::Random };
            let placed = options.placed.unwrap_or(default);
            services.push(Calls::PerMinute { counts, placed, seed: seed(options.seed, lines.number) });
        }
    }
    if services.is_empty() && !options.triggers.is_empty() {
        let wanted = options.triggers.join(", ");
        let what = format!("{name}: no function has the trigger {wanted}; there are {}", triggers.join(", "));
        return Err(CommandError::Input(what));
    }
    let minutes = u32::try_from(columns.minutes).unwrap_or(u32::MAX);
    Ok(CallTrace { name: title(name, &options.triggers), services, length: MINUTE * minutes })
}

fn title(name: &str, triggers: &[String]) -> String {
    let file = std::path::Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or(name);
    if triggers.is_empty() { file.to_owned() } else { format!("{file}, {} functions", triggers.join(", ")) }
}

/// Each function has its own random numbers, independent of the others.
fn seed(seed: u64, line: usize) -> u64 {
    let mut random = rouse_core::random::Random::new(seed ^ (line as u64));
    random.next_u64()
}

struct Lines<'a> {
    input: &'a mut dyn BufRead,
    name: &'a str,
    line: String,
    number: usize,
}

impl Lines<'_> {
    /// Reads the next line, without its end. Returns false at the end of the file.
    fn next(&mut self) -> Result<bool, CommandError> {
        self.line.clear();
        self.number += 1;
        let mut limited = std::io::Read::take(&mut *self.input, LONGEST_LINE);
        let read = limited.read_line(&mut self.line);
        let read = read.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => self.refuse(1, "the line is not UTF-8"),
            _ => CommandError::Io { what: format!("cannot read {}", self.name), error },
        })?;
        if read as u64 == LONGEST_LINE && !self.line.ends_with('\n') {
            return Err(self.refuse(1, &format!("the line is longer than {LONGEST_LINE} bytes")));
        }
        self.line.truncate(self.line.trim_end_matches(['\n', '\r']).len());
        Ok(read > 0)
    }

    fn refuse(&self, column: usize, what: &str) -> CommandError {
        CommandError::Input(format!("{}, line {}, column {column}: {what}", self.name, self.number))
    }

    /// The first line.
    fn columns(&self) -> Result<Columns, CommandError> {
        let names: Vec<&str> = self.line.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
        for (at, expected) in NAMES.into_iter().enumerate() {
            match names.get(at) {
                Some(name) if *name == expected => {}
                found => {
                    let found = found.unwrap_or(&"nothing");
                    return Err(self.refuse(at + 1, &format!("expected {expected}, found {found:?}")));
                }
            }
        }
        let has_trigger = names.get(NAMES.len()) == Some(&TRIGGER);
        let before = NAMES.len() + usize::from(has_trigger);
        let minutes = &names[before..];
        if minutes.is_empty() || minutes.len() > MOST_MINUTES {
            let what =
                format!("expected one column for each minute, 1 to {MOST_MINUTES}, found {}", minutes.len());
            return Err(self.refuse(before + 1, &what));
        }
        let mut expected: Option<u64> = None;
        for (at, name) in minutes.iter().enumerate() {
            let number =
                name.parse::<u64>().ok().filter(|number| expected.is_none_or(|expected| expected == *number));
            let Some(number) = number else {
                let allowed = match expected {
                    Some(next) => format!("minute {next}"),
                    None => "Trigger, or the number of a minute".to_owned(),
                };
                return Err(self.refuse(before + at + 1, &format!("expected {allowed}, found {name:?}")));
            };
            expected = Some(number + 1);
        }
        Ok(Columns { has_trigger, minutes: minutes.len() })
    }

    /// A further line: the trigger, and the minutes with calls.
    fn function(&self, columns: &Columns) -> Result<(String, Vec<(u32, u32)>), CommandError> {
        let before = NAMES.len() + usize::from(columns.has_trigger);
        let mut fields = self.line.split(',');
        let trigger = fields.by_ref().take(before).last().filter(|_| columns.has_trigger).unwrap_or_default();
        let mut counts = Vec::new();
        let mut found = 0;
        for (minute, field) in (0..).zip(fields) {
            found += 1;
            if field == "0" {
                continue;
            }
            let count = field.trim().parse::<u32>().map_err(|_| {
                let allowed = "expected a number of calls, 0 or more";
                self.refuse(before + found, &format!("{allowed}, found {field:?}"))
            })?;
            if count > 0 {
                counts.push((minute, count));
            }
        }
        if found != columns.minutes {
            let fields = self.line.split(',').count();
            let expected = before + columns.minutes;
            return Err(
                self.refuse(fields, &format!("expected {expected} fields as in line 1, found {fields}"))
            );
        }
        Ok((trigger.trim().to_owned(), counts))
    }
}
