//! The flags of `rouse gateway`, made of the table of settings. clap reads them as text; what they may be is judged
//! with all other sources.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, ValueEnum};

use super::table::{SETTINGS, Setting};
use super::value::Kind;

/// `rouse gateway`.
#[derive(Debug, Clone, Default)]
pub struct GatewayArgs {
    /// The file with settings.
    pub config: Option<PathBuf>,
    /// Whether to check the settings, show them, and do no more.
    pub check_config: bool,
    /// How to show them.
    pub output: Format,
    settings: BTreeMap<&'static str, Vec<String>>,
}

impl GatewayArgs {
    /// The values of the flag for the setting `name`, in their order.
    pub fn given(&self, name: &str) -> impl Iterator<Item = &str> {
        self.settings.get(name).into_iter().flatten().map(String::as_str)
    }
}

/// How `--check-config` prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    #[default]
    Text,
    /// A list of {name, value, origin}
    Json,
}

const CONFIG_HELP: &str =
    "A YAML file with settings: the flags below are its keys, without the dashes [env: ROUSE_CONFIG]";

/// What is no setting.
#[derive(Debug, Args)]
struct Fixed {
    /// Where settings are, too.
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// Check all settings, open the certificates, show what each setting is and where it comes from, and do no more
    #[arg(long)]
    check_config: bool,
    /// How --check-config prints
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t, requires = "check_config")]
    output: Format,
}

fn arg(setting: &'static Setting) -> Option<Arg> {
    let variables = setting.variable().into_iter().chain(setting.aliases.iter().map(|it| it.name.to_owned()));
    let variables: Vec<String> = variables.collect();
    let help =
        format!("{} [default: {}] [env: {}]", setting.help, setting.default.as_str(), variables.join(", "));
    setting.flag()?;
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.kind.placeholder())
        .help(help)
        .help_heading(setting.heading.as_str())
        .allow_negative_numbers(true)
        // Also for what may be there only once: that is told with all the rest.
        .action(ArgAction::Append);
    Some(if setting.kind == Kind::Switch { arg.num_args(0..=1).default_missing_value("true") } else { arg })
}

impl Args for GatewayArgs {
    fn augment_args(command: Command) -> Command {
        Fixed::augment_args(command).args(SETTINGS.iter().filter_map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for GatewayArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let Fixed { config, check_config, output } = Fixed::from_arg_matches(matches)?;
        let given = |setting: &'static Setting| {
            setting.flag()?;
            let values = matches.get_many::<String>(setting.name)?;
            Some((setting.name, values.cloned().collect()))
        };
        Ok(Self { config, check_config, output, settings: SETTINGS.iter().filter_map(given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
