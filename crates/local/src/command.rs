//! A pod's command: replaces `$PORT`, `$HOST` and `$NAME` in it, and checks that its program and working directory exist.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The command of an app, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSpec {
    /// The program and its arguments. In each, `$PORT`, `$HOST` and `$NAME` (also `${PORT}`, …) become the pod's port,
    /// address and name, and `$$` becomes `$`.
    pub argv: Vec<String>,
    /// Added to `rouse`'s own environment, with the same replacements. `PORT` and `HOST` are always the pod's, even if they are
    /// set here.
    pub env: BTreeMap<String, String>,
    /// The working directory.
    pub workdir: PathBuf,
}

/// Why a pod could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The command has no program.
    #[error("the command is empty: expected a program and its arguments")]
    Empty,
    /// The working directory does not exist.
    #[error("the working directory {} does not exist", .0.display())]
    NoWorkdir(PathBuf),
    /// The working directory is not a directory.
    #[error("the working directory {} is not a directory", .0.display())]
    WorkdirNotDirectory(PathBuf),
    /// No program of that name is in any directory of `PATH`.
    #[error("command not found: {command:?} is in no directory of PATH ({path})")]
    NotFound {
        /// The program.
        command: String,
        /// The searched `PATH`.
        path: String,
    },
    /// The program is a path, and the file does not exist.
    #[error("command not found: there is no {}", .0.display())]
    NoFile(PathBuf),
    /// The file exists, but is not executable.
    #[error("{} is not executable{}", .0.display(), if .0.is_dir() { ": it is a directory" } else { "; run chmod +x on it" })]
    NotExecutable(PathBuf),
    /// The operating system cannot run it.
    #[error("{command:?} could not be run{}", match source.kind() {
        io::ErrorKind::NotFound => " (a script's #! line may name a program that does not exist)",
        io::ErrorKind::ArgumentListTooLong => " (arguments and environment are too long)",
        _ => "",
    })]
    Exec {
        /// The program.
        command: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The guardian, which runs the command, could not be started.
    #[error("the guardian process {} could not be started", program.display())]
    Guardian {
        /// The program of the guardian.
        program: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The guardian ended, or sent no valid message in time.
    #[error("the guardian process {} did not report whether the command runs", .0.display())]
    GuardianSilent(PathBuf),
}

impl SpawnError {
    /// Whether the app's configuration is the cause, so that every further attempt fails until it changes.
    pub(crate) fn is_final(&self) -> bool {
        use io::ErrorKind::{ArgumentListTooLong, InvalidInput, NotADirectory, NotFound, PermissionDenied};
        match self {
            Self::Empty
            | Self::NoWorkdir(_)
            | Self::WorkdirNotDirectory(_)
            | Self::NotFound { .. }
            | Self::NoFile(_)
            | Self::NotExecutable(_) => true,
            Self::Exec { source, .. } => {
                let kinds = [ArgumentListTooLong, InvalidInput, NotADirectory, NotFound, PermissionDenied];
                kinds.contains(&source.kind())
                    || source.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
            }
            // Caused by `rouse` or the operating system: it may be temporary.
            Self::Guardian { .. } | Self::GuardianSilent(_) => false,
        }
    }
}

impl CommandSpec {
    /// The arguments for a pod called `name` at `address`.
    pub fn argv_at(&self, name: &str, address: SocketAddr) -> Vec<String> {
        let pod = Pod::new(name, address);
        self.argv.iter().map(|argument| pod.fill_in(argument)).collect()
    }

    /// The variables to add to the environment of a pod called `name` at `address`.
    pub fn env_at(&self, name: &str, address: SocketAddr) -> BTreeMap<String, String> {
        let pod = Pod::new(name, address);
        let own = self.env.iter().map(|(variable, value)| (variable.clone(), pod.fill_in(value)));
        let mut env: BTreeMap<String, String> = own.collect();
        env.insert("PORT".into(), pod.port);
        env.insert("HOST".into(), pod.host);
        env
    }

    /// Checks that a pod called `name` at `address` can run the command. The operating system reports a missing program and a
    /// missing directory with the same error.
    pub fn check_at(&self, name: &str, address: SocketAddr) -> Result<(), SpawnError> {
        if !self.workdir.exists() {
            return Err(SpawnError::NoWorkdir(self.workdir.clone()));
        }
        if !self.workdir.is_dir() {
            return Err(SpawnError::WorkdirNotDirectory(self.workdir.clone()));
        }
        let pod = Pod::new(name, address);
        let program = self.argv.first().map(|program| pod.fill_in(program));
        let program = program.filter(|program| !program.is_empty()).ok_or(SpawnError::Empty)?;
        if program.contains('/') {
            let file = self.workdir.join(&program);
            return match () {
                () if is_executable(&file) => Ok(()),
                () if file.exists() => Err(SpawnError::NotExecutable(file)),
                () => Err(SpawnError::NoFile(file)),
            };
        }
        let path = self.env.get("PATH").map(|path| OsString::from(pod.fill_in(path)));
        let path = path.unwrap_or_else(|| env::var_os("PATH").unwrap_or_default());
        find(&program, &path, &self.workdir)
    }
}

/// Looks for `program` in the directories of `path`, as the operating system does.
fn find(program: &str, path: &OsStr, workdir: &Path) -> Result<(), SpawnError> {
    let mut unusable = None;
    for directory in env::split_paths(path) {
        let file = workdir.join(directory).join(program);
        if is_executable(&file) {
            return Ok(());
        }
        if unusable.is_none() && file.is_file() {
            unusable = Some(file);
        }
    }
    Err(unusable.map_or_else(
        || SpawnError::NotFound { command: program.into(), path: path.to_string_lossy().into_owned() },
        SpawnError::NotExecutable,
    ))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// The values that replace the variables in the command and the environment of a pod.
struct Pod<'a> {
    name: &'a str,
    host: String,
    port: String,
}

impl<'a> Pod<'a> {
    fn new(name: &'a str, address: SocketAddr) -> Self {
        Self { name, host: address.ip().to_string(), port: address.port().to_string() }
    }

    fn fill_in(&self, text: &str) -> String {
        replace(text, |name| match name {
            "PORT" => Some(&self.port),
            "HOST" => Some(&self.host),
            "NAME" => Some(self.name),
            _ => None,
        })
    }
}

/// Replaces `$X` and `${X}` if `value` has X, and `$$` by `$`. Every other `$` stays: it may be for a shell.
fn replace<'a>(text: &str, value: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        replaced.push_str(before);
        if let Some(escaped) = after.strip_prefix('$') {
            replaced.push('$');
            rest = escaped;
            continue;
        }
        let (name, then) = match after.strip_prefix('{').and_then(|braced| braced.split_once('}')) {
            Some(braced) => braced,
            // `$PORTAL` is not `$PORT` followed by letters.
            None => after.split_at(after.find(|c: char| !is_name(c)).unwrap_or(after.len())),
        };
        if let Some(value) = value(name) {
            replaced.push_str(value);
            rest = then;
        } else {
            replaced.push('$');
            rest = after;
        }
    }
    replaced.push_str(rest);
    replaced
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn spec(argv: &[&str], env: &[(&str, &str)], workdir: &Path) -> CommandSpec {
        CommandSpec {
            argv: argv.iter().map(ToString::to_string).collect(),
            env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            workdir: workdir.into(),
        }
    }

    #[test]
    fn port_host_and_name_are_replaced_and_nothing_else_is() {
        let cases = [
            ("$PORT", "4000"),
            ("${PORT}", "4000"),
            ("http://$HOST:$PORT/x", "http://127.0.0.1:4000/x"),
            ("--port=$PORT$PORT", "--port=40004000"),
            ("${HOST}name", "127.0.0.1name"),
            ("$PORTAL $PORT_2 $port ${PORT", "$PORTAL $PORT_2 $port ${PORT"),
            ("$NAME ${NAME}.log $NAMES", "web-1 web-1.log $NAMES"),
            ("$HOME $1 $(x) $", "$HOME $1 $(x) $"),
            ("$$PORT $$$PORT $$$$ $$HOME ${$PORT}", "$PORT $4000 $$ $HOME ${4000}"),
            ("ü$PORTü", "ü4000ü"),
            ("", ""),
        ];
        let address = "127.0.0.1:4000".parse().unwrap();
        for (text, expected) in cases {
            let spec = spec(&[text], &[("X", text)], Path::new("/"));
            assert_eq!(spec.argv_at("web-1", address), [expected], "{text:?}");
            assert_eq!(spec.env_at("web-1", address)["X"], expected, "{text:?}");
        }
    }

    #[test]
    fn port_and_host_in_the_environment_are_the_pods() {
        let spec = spec(&["x"], &[("PORT", "1"), ("GREETING", "hi")], Path::new("/"));
        let env = spec.env_at("web-1", "127.0.0.9:4000".parse().unwrap());
        let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("GREETING", "hi"), ("HOST", "127.0.0.9"), ("PORT", "4000")]);
    }

    /// Command, environment, working directory, and parts of the error message.
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], PathBuf, &'a [&'a str]);

    #[test]
    fn what_cannot_be_run_is_said_clearly() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        std::fs::write(here.join("plain"), "").unwrap();
        std::fs::write(here.join("tool"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(here.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = [("PATH", here.to_str().unwrap())];
        let at = |name: &str| here.join(name).display().to_string();
        let somewhere = "127.0.0.1:4000".parse().unwrap();
        let cases: [Case<'_>; 9] = [
            (&[], &[], here.into(), &["empty"]),
            (&[""], &[], here.into(), &["empty"]),
            (&["tool"], &[], here.join("gone"), &["working directory", "gone", "does not exist"]),
            (&["tool"], &[], here.join("plain"), &["working directory", "plain", "not a directory"]),
            (&["nosuch"], &path, here.into(), &["command not found", "\"nosuch\"", "PATH", &at("")[..4]]),
            (&["plain"], &path, here.into(), &[&at("plain"), "not executable", "chmod +x"]),
            (&["./plain"], &[], here.into(), &["plain", "not executable"]),
            (&["./nosuch"], &[], here.into(), &["command not found", "nosuch"]),
            (&["/"], &[], here.into(), &["not executable", "directory"]),
        ];
        for (argv, env, workdir, words) in cases {
            let error = spec(argv, env, &workdir).check_at("web-1", somewhere).unwrap_err();
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text} should say {words:?}");
            assert!(error.source().is_none());
        }
        for (argv, env) in [(["tool"], path.as_slice()), (["./tool"], &[]), (["sh"], &[])] {
            spec(&argv, env, here).check_at("web-1", somewhere).unwrap();
        }
    }

    #[test]
    fn a_command_is_checked_as_it_will_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        let bin = here.join("web-1$");
        std::fs::create_dir(&bin).unwrap();
        for tool in [here.join("tool-web-1"), bin.join("tool")] {
            std::fs::write(&tool, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{}/$NAME$$", here.display());
        let (name, address) = ("web-1", "127.0.0.1:4000".parse().unwrap());
        for (argv, env) in [("./tool-$NAME", vec![]), ("tool", vec![("PATH", path.as_str())])] {
            spec(&[argv], &env, here).check_at(name, address).unwrap();
        }
        let error = spec(&["./tool-$PORT"], &[], here).check_at(name, address).unwrap_err();
        assert!(error.to_string().ends_with("tool-4000"), "{error}");
    }
}
