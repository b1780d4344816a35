//! Loads the certificates of TLS listeners from files and folders, and reloads them when they change.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rouse_net::tls::{CertEntry, Identity, LoadError, Pem, ServerSettings, ServerTls, Warning};
use tokio_util::sync::CancellationToken;

use crate::process::console::Console;
use crate::rouse_yaml::Cert;

/// How deep folders are searched: Secrets are mounted one folder each, with links inside.
const DEEPEST: usize = 3;
/// The most pairs of one folder; more are a mistake, and ignored.
const MOST: usize = 1000;
/// How often folders are searched for new certificates.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What metrics call the listeners of requests.
pub(crate) const HTTPS: &str = "https";

/// The files of the certificates, and everything else about the TLS listeners.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFiles {
    /// Pairs of certificate and key.
    pub(crate) certs: Vec<Cert>,
    /// Folders with such pairs.
    pub(crate) folders: Vec<PathBuf>,
    /// Versions and client certificates; its own certificates are not used.
    pub(crate) template: ServerSettings,
}

/// The loaded certificates, and warnings about them.
#[derive(Debug)]
pub(crate) struct Certificates {
    server: Arc<ServerTls>,
    warnings: Vec<Warning>,
    files: CertificateFiles,
}

/// Why certificates cannot be used.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// A folder cannot be read, or has no pair.
    Folders(String),
    /// A file cannot be used.
    File(LoadError),
}

impl Certificates {
    /// Reads the certificates.
    pub(crate) fn open(files: CertificateFiles) -> Result<Self, OpenError> {
        let found = files.read().map_err(OpenError::Folders)?;
        let (server, warnings) = ServerTls::new(found).map_err(OpenError::File)?;
        Ok(Self { server: Arc::new(server), warnings, files })
    }

    /// The TLS configuration of the listeners.
    pub(crate) fn server(&self) -> &Arc<ServerTls> {
        &self.server
    }

    /// Warnings about the certificates.
    pub(crate) fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Reloads certificates that change. Never returns.
    pub(crate) async fn watch(self, console: Console) {
        let Self { server, warnings, files } = self;
        report(Ok(warnings), &console);
        let changed = Arc::clone(&server).watch(CancellationToken::new(), |loaded| report(loaded, &console));
        if files.folders.is_empty() {
            return changed.await;
        }
        let folders = async {
            let mut known = files.read().ok();
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            loop {
                ticks.tick().await;
                match files.read() {
                    Ok(found) if known.as_ref() != Some(&found) => {
                        known = Some(found.clone());
                        report(server.replace(found), &console);
                    }
                    // A folder that cannot be read may be in the middle of a remount; its certificates stay in use.
                    _ => {}
                }
            }
        };
        tokio::join!(changed, folders);
    }
}

/// Replaces the certificates of `server`; on an error the old ones stay in use.
pub(crate) fn replace(server: &ServerTls, files: &CertificateFiles, console: &Console) {
    match files.read() {
        Ok(found) => report(server.replace(found), console),
        Err(what) => console.error(&what),
    }
}

fn report(loaded: Result<Vec<Warning>, LoadError>, console: &Console) {
    match loaded {
        Ok(warnings) => warnings.iter().for_each(|warning| console.warn(&warning.to_string())),
        Err(error) => {
            console.error(&error.to_string());
            console.say("the old certificates stay in use");
        }
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<ServerSettings, String> {
        let mut pairs = self.certs.clone();
        for folder in &self.folders {
            let found = find(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            pairs.extend(found);
        }
        if pairs.is_empty() {
            let folders: Vec<String> = self.folders.iter().map(|it| it.display().to_string()).collect();
            return Err(format!(
                "no pair of certificate and key, like tls.crt and tls.key, or shop.pem and shop-key.pem, in {}",
                folders.join(", ")
            ));
        }
        let entry = |Cert { cert, key }| CertEntry {
            identity: Identity { chain: Pem::File(cert), key: Pem::File(key) },
            names: Vec::new(),
        };
        Ok(ServerSettings { certificates: pairs.into_iter().map(entry).collect(), ..self.template.clone() })
    }
}

/// The pairs in a folder and those below it, in order of their names.
fn find(folder: &Path) -> io::Result<Vec<Cert>> {
    let mut files = BTreeSet::new();
    collect(folder, DEEPEST, &mut files)?;
    let key_of = |cert: &PathBuf| {
        let stem = cert.file_stem()?.to_str()?;
        let keys = match cert.extension()?.to_str()? {
            "crt" => [cert.with_extension("key"), cert.with_file_name(format!("{stem}-key.crt"))],
            "pem" => [cert.with_file_name(format!("{stem}-key.pem")), cert.with_extension("key")],
            _ => return None,
        };
        keys.into_iter().find(|key| files.contains(key))
    };
    let pairs = files.iter().filter_map(|cert| Some(Cert { key: key_of(cert)?, cert: cert.clone() }));
    Ok(pairs.take(MOST).collect())
}

fn collect(folder: &Path, deep: usize, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // The kubelet's own links in a mounted Secret, like ..data: the same files under another name.
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
        if hidden || files.len() >= MOST * 2 {
            continue;
        }
        if !path.is_dir() {
            files.insert(path);
        } else if deep > 0 {
            collect(&path, deep - 1, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_by_their_names_also_in_the_folders_of_mounted_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for name in [
            "tls.crt",
            "tls.key",
            "shop/tls.crt",
            "shop/tls.key",
            "shop/..data/tls.crt",
            "shop/..data/tls.key",
            "a.pem",
            "a-key.pem",
            "ca.crt",
            "alone.pem",
            "notes.txt",
        ] {
            put(name);
        }
        let found = find(folder.path()).unwrap();
        let names = found.iter().map(|pair| {
            let name = |path: &Path| path.strip_prefix(folder.path()).unwrap().display().to_string();
            (name(&pair.cert), name(&pair.key))
        });
        let expected = [("a.pem", "a-key.pem"), ("shop/tls.crt", "shop/tls.key"), ("tls.crt", "tls.key")];
        let expected = expected.map(|(cert, key)| (cert.to_owned(), key.to_owned()));
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
