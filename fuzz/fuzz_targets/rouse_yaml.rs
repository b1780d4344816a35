//! Fuzzes the parser of `rouse.yaml`: it returns a consistent configuration, or errors that can be printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_daemon::rouse_yaml::{self as config, SHOWN};

fuzz_target!(|text: &str| match config::read(text, "rouse.yaml") {
    Ok(config) => {
        assert!(!config.listen.is_empty() && !config.apps.is_empty());
        for app in &config.apps {
            assert!(!app.command.program.is_empty() && !app.hosts.is_empty() && !app.paths.is_empty());
            assert!(app.scale.settings().min <= app.scale.settings().max);
        }
    }
    Err(errors) => {
        let lines = errors.to_string().lines().count();
        assert!((2..=SHOWN + 2).contains(&lines), "{errors}");
        assert!(errors.problems().is_sorted());
    }
});
