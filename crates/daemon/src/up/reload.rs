//! Reads a changed `rouse.yaml`. An invalid file changes nothing; keys of listeners and logs need a restart.

use rouse_config::settings::Values;

use super::settings::{ADMIN, LISTEN};
use super::source::ConfigSource;
use crate::process::console::Console;
use crate::rouse_yaml::{Config, Tls};

/// Reads the file again, and warns about what cannot change while `config` serves. `None` if there is nothing to apply.
pub(super) fn read(
    source: &ConfigSource,
    config: &Config,
    values: &Values,
    console: &Console,
) -> Option<Config> {
    if *source == ConfigSource::Demo {
        console.say("the built-in demo has no file to reload");
        return None;
    }
    match source.read() {
        Ok(new) => {
            for ignored in ignored(config, &new, values) {
                console.warn(&ignored);
            }
            Some(new)
        }
        Err(error) => {
            console.error(&error.to_string());
            console.say("the old configuration stays in use");
            None
        }
    }
}

/// The configuration after `new` was applied. It keeps the old listeners and logs, so that reverting those keys is not a
/// change.
pub(super) fn merged(old: &Config, new: Config) -> Config {
    let tls = old.tls.clone().map(|old| Tls { listen: old.listen, ..new.tls.clone().unwrap_or(old) });
    Config { listen: old.listen.clone(), admin: old.admin, logs: old.logs.clone(), tls, ..new }
}

/// Warnings about changed keys that need a restart.
fn ignored(old: &Config, new: &Config, values: &Values) -> Vec<String> {
    let listen = values.get(&LISTEN).is_empty() && old.listen != new.listen;
    let admin = values.get(&ADMIN).is_none() && old.admin != new.admin;
    let logs = old.logs != new.logs;
    let tls = old.tls.as_ref().map(|tls| tls.listen) != new.tls.as_ref().map(|tls| tls.listen);
    let keys = [("listen", listen), ("admin", admin), ("tls.listen", tls), ("logs", logs)]
        .into_iter()
        .filter(|(_, changed)| *changed);
    keys.map(|(key, _)| {
        format!("{key} has changed: restart `rouse up` to apply it; the old value stays in use")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::args::values;
    use super::*;

    #[test]
    fn addresses_that_changed_need_a_restart_unless_a_flag_decides() {
        let read = |head: &str| {
            crate::rouse_yaml::read(&format!("{head}\napps: {{a: {{command: [x]}}}}"), "rouse.yaml").unwrap()
        };
        let (old, new) = (read(""), read("listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\nlogs: out"));
        let keys = |flags: &[&str]| -> Vec<String> {
            let said = ignored(&old, &new, &values(flags));
            said.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(keys(&[]), ["listen", "admin", "logs"]);
        assert_eq!(keys(&["--listen", "127.0.0.1:3"]), ["admin", "logs"]);
        assert_eq!(keys(&["--admin", "127.0.0.1:3"]), ["listen", "logs"]);
        assert!(ignored(&old, &old, &values(&[""; 0])).is_empty());
    }
}
