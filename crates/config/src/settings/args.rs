//! Builds the clap flags of a command from its table of settings. Values stay text here, and are checked with all other
//! sources.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use super::read::SettingsTable;
use super::setting::AnySetting;

/// A command with a table of settings.
pub trait HasTable: 'static {
    /// Its settings.
    const TABLE: &'static SettingsTable;
}

/// The flags of the command `C` that were given, as text. Part of its arguments by `#[command(flatten)]`.
pub struct Flags<C> {
    given: BTreeMap<&'static str, Vec<String>>,
    command: PhantomData<fn() -> C>,
}

impl<C> Flags<C> {
    /// The values of the flag for the setting `name`, in their order.
    pub(super) fn given(&self, name: &str) -> impl Iterator<Item = &str> {
        self.given.get(name).into_iter().flatten().map(String::as_str)
    }
}

impl<C> Default for Flags<C> {
    fn default() -> Self {
        Self { given: BTreeMap::new(), command: PhantomData }
    }
}

impl<C> Clone for Flags<C> {
    fn clone(&self) -> Self {
        Self { given: self.given.clone(), command: PhantomData }
    }
}

impl<C> fmt::Debug for Flags<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flags").field(&self.given).finish()
    }
}

impl<C: HasTable> Args for Flags<C> {
    fn augment_args(command: Command) -> Command {
        let with_title = |title: &'static str| move |setting| arg(setting, title);
        let groups = C::TABLE.groups.iter();
        let all = groups.flat_map(|group| group.settings.iter().copied().filter_map(with_title(group.title)));
        command.args(all)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: HasTable> FromArgMatches for Flags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |setting: &'static dyn AnySetting| {
            setting.flag()?;
            let values = matches.get_many::<String>(setting.name())?;
            Some((setting.name(), values.cloned().collect()))
        };
        Ok(Self { given: C::TABLE.settings().filter_map(given).collect(), command: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn arg(setting: &'static dyn AnySetting, heading: &'static str) -> Option<Arg> {
    setting.flag()?;
    let aliases = setting.aliases().iter().map(|alias| alias.name.to_owned());
    let variables: Vec<String> = setting.variable().into_iter().chain(aliases).collect();
    let help =
        format!("{} [default: {}] [env: {}]", setting.help(), setting.default_text(), variables.join(", "));
    let arg = Arg::new(setting.name())
        .long(setting.name())
        .value_name(setting.placeholder())
        .help(help)
        .help_heading(heading)
        .allow_negative_numbers(true)
        // Also for a flag that may be given only once: that is reported with all other problems.
        .action(ArgAction::Append);
    Some(if setting.is_switch() { arg.num_args(0..=1).default_missing_value("true") } else { arg })
}
