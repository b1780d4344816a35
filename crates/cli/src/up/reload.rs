//! A changed file: applied whole, or not at all.

use super::lines;
use super::source::Source;
use super::system::System;
use crate::args::Up;
use crate::config::{Config, Tls};
use crate::process::screen::Screen;

/// Reads the file again and applies it. `config` is what serves, before and after.
pub(super) fn reload(source: &Source, config: &mut Config, up: &Up, system: &mut System, screen: &Screen) {
    if *source == Source::Demo {
        return screen.say("the built-in demo has no file that could be read again");
    }
    let new = match source.read() {
        Ok(new) => new,
        Err(error) => {
            screen.say(lines::error(&error.to_string()));
            return screen.say("the old configuration keeps serving");
        }
    };
    for ignored in ignored(config, &new, up) {
        screen.say(lines::warning(&ignored));
    }
    system.apply(&new, source, screen);
    // What still listens is what was said at the start, so that going back to it is no change.
    let (listen, admin, logs) = (std::mem::take(&mut config.listen), config.admin, config.logs.clone());
    let tls = config.tls.take().map(|old| Tls { listen: old.listen, ..new.tls.clone().unwrap_or(old) });
    *config = Config { listen, admin, tls, logs, ..new };
    screen.say(format!("reloaded {}", source.name()));
}

/// What cannot change while we run.
fn ignored(old: &Config, new: &Config, up: &Up) -> Vec<String> {
    let listen = up.listen.is_empty() && old.listen != new.listen;
    let admin = up.admin.is_none() && old.admin != new.admin;
    let logs = old.logs != new.logs;
    let tls = old.tls.as_ref().map(|tls| tls.listen) != new.tls.as_ref().map(|tls| tls.listen);
    let keys = [("listen", listen), ("admin", admin), ("tls.listen", tls), ("logs", logs)]
        .into_iter()
        .filter(|(_, changed)| *changed);
    keys.map(|(key, _)| format!("{key} has changed, which needs a restart of `rouse up`: it stays as it was"))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Command, Rouse};

    fn up(flags: &[&str]) -> Up {
        match Rouse::try_parse_from(["rouse", "up"].iter().chain(flags)).unwrap().command {
            Command::Up(up) => up,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn addresses_that_changed_need_a_restart_unless_a_flag_decides() {
        let read = |head: &str| {
            crate::config::read(&format!("{head}\napps: {{a: {{command: [x]}}}}"), "rouse.yaml").unwrap()
        };
        let (old, new) = (read(""), read("listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\nlogs: out"));
        let keys = |flags: &[&str]| -> Vec<String> {
            let said = ignored(&old, &new, &up(flags));
            said.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(keys(&[]), ["listen", "admin", "logs"]);
        assert_eq!(keys(&["--listen", "127.0.0.1:3"]), ["admin", "logs"]);
        assert_eq!(keys(&["--admin", "127.0.0.1:3"]), ["listen", "logs"]);
        assert!(ignored(&old, &old, &up(&[])).is_empty());
    }
}
