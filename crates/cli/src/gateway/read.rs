//! All sources → settings: flags before our variables, these before KEDA's, these before the file. Every source is
//! read whole, also where another one counts, so that all that is wrong is told at once.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::args::GatewayArgs;
use super::file::{self, File};
use super::keda::{self, Said};
use super::settings::{Listed, Settings};
use super::sources::{Environment, Origin, Problem, Problems, Warning};
use super::table::{Fallback, SETTINGS, Setting};
use super::value::Value;
use super::{build, check};
use crate::config::field::{closest, shown};
use crate::document;

/// The variable for `--config`.
const CONFIG: &str = "ROUSE_CONFIG";

/// The settings, and what an operator should know about them. `open` reads the file, if one is named.
pub fn read(
    args: &GatewayArgs,
    env: impl IntoIterator<Item = (String, String)>,
    open: impl FnOnce(&Path) -> io::Result<String>,
) -> Result<(Settings, Vec<Warning>), Problems> {
    let (env, mut notes) = (Environment::new(env), Notes::default());
    let file = named_file(args, &env).and_then(|(path, origin)| opened(&path, origin, open, &mut notes));
    let sources = Sources { args, env: &env, file: file.as_ref() };
    let listed: Vec<Listed> = SETTINGS.iter().map(|setting| sources.find(setting, &mut notes)).collect();
    unknown_variables(&env, &mut notes);
    let built = build::settings(listed);
    match &built {
        Ok(settings) => check::together(settings, &mut notes),
        Err(build::Misfit(name)) => {
            notes.tell(
                Origin::Default,
                format!("{name} does not fit the table of settings: please report this"),
            );
        }
    }
    let settings = Problems::none_in(notes.problems, built.ok())?;
    notes.warnings.sort();
    notes.warnings.dedup();
    Ok((settings, notes.warnings))
}

/// What was found to say.
#[derive(Debug, Default)]
pub(super) struct Notes {
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
    /// Settings of which some source has it wrong: what they are to be is not known.
    doubtful: HashSet<&'static str>,
}

impl Notes {
    pub(super) fn tell(&mut self, origin: Origin, what: impl Into<String>) {
        self.problems.push(Problem { origin, what: what.into() });
    }

    pub(super) fn warn(&mut self, origin: Origin, what: impl Into<String>) {
        self.warnings.push(Warning { origin, what: what.into() });
    }

    /// Whether all sources have `names` right. If not, nobody can say how they go together.
    pub(super) fn sure_of(&self, names: &[&str]) -> bool {
        names.iter().all(|name| !self.doubtful.contains(name))
    }

    fn doubt(&mut self, setting: &Setting, origin: Origin, what: String) {
        self.doubtful.insert(setting.name);
        self.tell(origin, what);
    }

    /// What `text` makes `setting`; relative paths are the process's own. `written` is what people see.
    fn parse(
        &mut self,
        setting: &Setting,
        texts: &[&str],
        origin: &Origin,
        written: Option<&str>,
    ) -> Option<Value> {
        let mut one = |text: &str| match setting.kind.parse(text, Path::new("")) {
            Ok(value) => Some(value),
            Err(allowed) => {
                self.doubt(setting, origin.clone(), refusal(written.unwrap_or(text), &allowed));
                None
            }
        };
        if !setting.kind.is_list() {
            return texts.first().copied().and_then(one);
        }
        // To the end, also after the first bad one.
        let all: Vec<_> =
            texts.iter().flat_map(|text| text.split(',')).map(|text| one(text.trim())).collect();
        all.into_iter().collect::<Option<_>>().map(Value::List)
    }
}

/// `x is not allowed: true or false`, as the file's errors have it.
fn refusal(text: &str, allowed: &str) -> String {
    format!("{} is not allowed: {allowed}", shown(&document::Value::Text(text.into())))
}

/// The file that somebody names, and who does.
fn named_file(args: &GatewayArgs, env: &Environment) -> Option<(PathBuf, Origin)> {
    let flag = args.config.clone().map(|path| (path, Origin::Flag("--config".to_owned())));
    let variable = || env.get(CONFIG).map(|path| (path.into(), Origin::Variable(CONFIG.to_owned())));
    flag.or_else(variable)
}

fn opened(
    path: &Path,
    named_by: Origin,
    open: impl FnOnce(&Path) -> io::Result<String>,
    notes: &mut Notes,
) -> Option<File> {
    let name = path.display().to_string();
    let text = match open(path) {
        Ok(text) => text,
        Err(error) => {
            notes.tell(named_by, format!("cannot read {name}: {error}"));
            return None;
        }
    };
    let mut file = file::read(&text, &name, path.parent().unwrap_or(Path::new("")));
    notes.problems.append(&mut file.problems);
    notes.doubtful.extend(&file.doubtful);
    Some(file)
}

/// Everywhere a setting can be.
struct Sources<'s> {
    args: &'s GatewayArgs,
    env: &'s Environment,
    file: Option<&'s File>,
}

impl Sources<'_> {
    fn find(&self, setting: &'static Setting, notes: &mut Notes) -> Listed {
        let by_precedence = [
            self.flag(setting, notes),
            self.variable(setting, notes),
            self.keda(setting, notes),
            self.file.and_then(|file| file.values.get(setting.name).cloned()),
        ];
        let found = by_precedence.into_iter().flatten().next();
        let (value, origin) = match (found, setting.default) {
            (Some((value, origin)), _) => (Some(value), origin),
            (None, Fallback::Is(text)) => {
                (notes.parse(setting, &[text], &Origin::Default, None), Origin::Default)
            }
            (None, Fallback::Nothing(_)) => (None, Origin::Default),
        };
        Listed { name: setting.name, value, origin }
    }

    fn flag(&self, setting: &'static Setting, notes: &mut Notes) -> Option<(Value, Origin)> {
        let origin = Origin::Flag(setting.flag()?);
        let texts: Vec<&str> = self.args.given(setting.name).collect();
        if texts.len() > 1 && !setting.kind.is_list() {
            notes.doubt(setting, origin, format!("it is there {} times: keep one", texts.len()));
            return None;
        }
        (!texts.is_empty()).then_some(())?;
        notes.parse(setting, &texts, &origin, None).map(|value| (value, origin))
    }

    fn variable(&self, setting: &'static Setting, notes: &mut Notes) -> Option<(Value, Origin)> {
        let name = setting.variable()?;
        let text = self.env.get(&name)?;
        let origin = Origin::Variable(name);
        notes.parse(setting, &[text], &origin, None).map(|value| (value, origin))
    }

    /// What KEDA's variables say: the first that says something.
    fn keda(&self, setting: &'static Setting, notes: &mut Notes) -> Option<(Value, Origin)> {
        if setting.name == "keda-compat" {
            let known = |name: &&str| is_alias(name) || keda::without_effect(name).is_some();
            let any = self.env.names(keda::PREFIX).find(known)?;
            return Some((Value::Switch(true), Origin::Variable(any.to_owned())));
        }
        let mut first = None;
        for alias in setting.aliases {
            let Some(text) = self.env.get(alias.name) else { continue };
            let origin = Origin::Variable(alias.name.to_owned());
            if let Some(successor) = alias.successor {
                notes.warn(origin.clone(), format!("this variable is deprecated: use {successor}"));
            }
            let said = match alias.says(text, self.env) {
                Said::Nothing => None,
                Said::Is(said) => Some(said),
                Said::But(said, what) => {
                    notes.warn(origin.clone(), what);
                    Some(said)
                }
                Said::Cannot(why) => {
                    notes.warn(origin.clone(), format!("{text} cannot be honoured: {why}"));
                    None
                }
                Said::Bad(allowed) => {
                    notes.doubt(setting, origin.clone(), refusal(text, &allowed));
                    None
                }
            };
            let value = said.and_then(|said| notes.parse(setting, &[&said], &origin, Some(text)));
            first = first.or_else(|| value.map(|value| (value, origin)));
        }
        first
    }
}

/// Whether a variable of KEDA's means one of our settings.
fn is_alias(name: &str) -> bool {
    SETTINGS.iter().flat_map(|setting| setting.aliases).any(|alias| alias.name == name)
}

/// A variable that nobody reads is a mistake, but none that should keep a gateway from starting.
fn unknown_variables(env: &Environment, notes: &mut Notes) {
    let ours: Vec<String> =
        SETTINGS.iter().filter_map(Setting::variable).chain([CONFIG.to_owned()]).collect();
    let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
    for name in env.names("ROUSE_").filter(|name| !ours.contains(name)) {
        let meant = closest(name, &ours).map_or(String::new(), |meant| format!(": did you mean {meant}?"));
        notes.warn(Origin::Variable(name.to_owned()), format!("no such variable is known{meant}"));
    }
    let of_keda =
        [keda::PREFIX, keda::OTEL, keda::PROFILING].into_iter().flat_map(|prefix| env.names(prefix));
    for name in of_keda.filter(|name| !is_alias(name)) {
        let why = keda::without_effect(name).unwrap_or("no such variable is known");
        notes.warn(Origin::Variable(name.to_owned()), format!("this variable has no effect: {why}"));
    }
}
