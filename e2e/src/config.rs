//! `rouse.yaml` for tests: apps that run the test app.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use serde_json::json;

use crate::Programs;

/// One app: the test app, at zero until its first request, one pod at most.
#[derive(Debug, Clone)]
pub struct App {
    name: String,
    protocol: &'static str,
    readiness: Option<String>,
    env: BTreeMap<String, String>,
    scale: BTreeMap<&'static str, String>,
    timeouts: BTreeMap<&'static str, String>,
    stop_grace: String,
    sidecar: bool,
}

impl App {
    /// An app that speaks HTTP/1.1.
    pub fn http() -> Self {
        Self {
            name: "app".to_owned(),
            protocol: "http",
            readiness: None,
            env: BTreeMap::new(),
            scale: BTreeMap::from([
                ("min", "0".to_owned()),
                ("max", "1".to_owned()),
                ("target", "100".to_owned()),
            ]),
            timeouts: BTreeMap::new(),
            stop_grace: "10s".to_owned(),
            sidecar: false,
        }
    }

    /// An app that speaks HTTP/2 without TLS.
    pub fn h2c() -> Self {
        Self { protocol: "h2c", ..Self::http() }
    }

    /// Another name than `app`; the host is `<name>.localhost`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// A variable of its environment: see the app's settings.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Display) -> Self {
        self.env.insert(name.to_owned(), value.to_string());
        self
    }

    /// A key of `scale`.
    #[must_use]
    pub fn scale(mut self, key: &'static str, value: impl Display) -> Self {
        self.scale.insert(key, value.to_string());
        self
    }

    /// A key of `timeouts`.
    #[must_use]
    pub fn timeout(mut self, key: &'static str, value: impl Display) -> Self {
        self.timeouts.insert(key, value.to_string());
        self
    }

    /// `readiness`, as it stands in the file: `{http: /healthz}`, say.
    #[must_use]
    pub fn readiness(self, readiness: &str) -> Self {
        Self { readiness: Some(readiness.to_owned()), ..self }
    }

    /// `stop-grace`.
    #[must_use]
    pub fn stop_grace(self, span: &str) -> Self {
        Self { stop_grace: span.to_owned(), ..self }
    }

    /// Runs with Rouse's sidecar.
    #[must_use]
    pub fn sidecar(self) -> Self {
        Self { sidecar: true, ..self }
    }

    /// One pod from the start.
    #[must_use]
    pub fn warm(self) -> Self {
        self.scale("min", 1)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host that leads to it.
    pub fn host(&self) -> String {
        format!("{}.localhost", self.name)
    }

    /// Its variables.
    pub fn variables(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    fn yaml(&self, programs: &Programs) -> String {
        let mut text =
            format!("  {}:\n    command: [{}]\n", self.name, json!(programs.app.to_string_lossy()));
        let mut line = |key: &str, value: &str| {
            // Writing to a string does not fail.
            let _never_fails = writeln!(text, "    {key}: {value}");
        };
        line("protocol", self.protocol);
        line("env", &json!(self.env).to_string());
        line("scale", &flow(&self.scale));
        line("stop-grace", &self.stop_grace);
        if !self.timeouts.is_empty() {
            line("timeouts", &flow(&self.timeouts));
        }
        if let Some(readiness) = &self.readiness {
            line("readiness", readiness);
        }
        if self.sidecar {
            line("sidecar", "true");
        }
        text
    }
}

fn flow(map: &BTreeMap<&str, String>) -> String {
    let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

/// What `rouse up` is started with.
#[derive(Debug, Clone, Default)]
pub struct Config {
    apps: Vec<App>,
    arguments: Vec<String>,
}

impl Config {
    /// With one app.
    pub fn of(app: App) -> Self {
        Self::default().and(app)
    }

    /// With one more app.
    #[must_use]
    pub fn and(mut self, app: App) -> Self {
        self.apps.push(app);
        self
    }

    /// With a flag and its value on the command line.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// The flags.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// The apps.
    pub fn apps(&self) -> &[App] {
        &self.apps
    }

    /// The file.
    pub fn yaml(&self, programs: &Programs) -> String {
        let apps: String = self.apps.iter().map(|app| app.yaml(programs)).collect();
        format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\napps:\n{apps}")
    }
}
