//! The certificates at the door: named one by one or found in folders, watched, and replaced without a restart.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rouse_net::tls::{
    self, CertEntry, ClientAuth, Identity, LoadError, Pem, ServerSettings, ServerTls, Versions, Warning,
};
use tokio_util::sync::CancellationToken;

use crate::config::Cert;
use crate::gateway::settings::{self, TlsVersion};
use crate::process::screen::Screen;
use crate::up::lines;

/// How deep folders are searched: Secrets are mounted one folder each, with links inside.
const DEEPEST: usize = 3;
/// More than these are a mistake.
const MOST: usize = 1000;
/// How often folders are looked at for certificates that are new there.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the TLS doors show, and what is odd about it.
#[derive(Debug)]
pub(super) struct Certificates {
    pub(super) server: Arc<ServerTls>,
    pub(super) warnings: Vec<Warning>,
    settings: settings::Tls,
}

/// Why there can be no TLS at the door: the setting that says so, and what is wrong with what it names.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) setting: &'static str,
    pub(super) what: String,
}

/// What the settings ask for, if they ask for TLS.
pub(super) fn open(settings: &settings::Tls) -> Result<Option<Certificates>, Refused> {
    if settings.listen.is_empty() {
        return Ok(None);
    }
    let found = read(settings).map_err(|what| Refused { setting: "tls-cert-dir", what })?;
    let refused =
        |error: LoadError| Refused { setting: named_by(&error.file, settings), what: error.to_string() };
    let (server, warnings) = ServerTls::new(found).map_err(refused)?;
    Ok(Some(Certificates { server: Arc::new(server), warnings, settings: settings.clone() }))
}

/// Which setting names the file.
fn named_by(file: &str, settings: &settings::Tls) -> &'static str {
    let is = |path: &Path| path.display().to_string() == file;
    let client_ca = match &settings.client_auth {
        settings::ClientAuth::None => None,
        settings::ClientAuth::Optional(ca) | settings::ClientAuth::Required(ca) => Some(ca),
    };
    if settings.certs.iter().any(|pair| is(&pair.cert)) {
        "tls-cert"
    } else if settings.certs.iter().any(|pair| is(&pair.key)) {
        "tls-key"
    } else if client_ca.is_some_and(|ca| is(ca)) {
        "tls-client-ca"
    } else {
        "tls-cert-dir"
    }
}

impl Certificates {
    /// Reads what has changed, for ever.
    pub(super) async fn watch(self, screen: Screen) {
        for warning in &self.warnings {
            screen.say(lines::warning(&warning.to_string()));
        }
        let Self { server, settings, .. } = self;
        let files = Arc::clone(&server).watch(CancellationToken::new(), |loaded| tell(loaded, &screen));
        if settings.cert_dirs.is_empty() {
            return files.await;
        }
        let folders = async {
            let mut known = read(&settings).ok();
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            loop {
                ticks.tick().await;
                match read(&settings) {
                    Ok(found) if known.as_ref() != Some(&found) => {
                        known = Some(found.clone());
                        tell(server.replace(found), &screen);
                    }
                    // A folder that cannot be read now may be mounted anew; what was found there serves on.
                    _ => {}
                }
            }
        };
        tokio::join!(files, folders);
    }
}

fn tell(loaded: Result<Vec<Warning>, LoadError>, screen: &Screen) {
    match loaded {
        Ok(warnings) => warnings.iter().for_each(|warning| screen.say(lines::warning(&warning.to_string()))),
        Err(error) => {
            screen.say(lines::error(&error.to_string()));
            screen.say("the old certificates keep serving");
        }
    }
}

fn read(settings: &settings::Tls) -> Result<ServerSettings, String> {
    let mut pairs = settings.certs.clone();
    for folder in &settings.cert_dirs {
        let found = find(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        pairs.extend(found);
    }
    if pairs.is_empty() {
        let folders: Vec<String> = settings.cert_dirs.iter().map(|it| it.display().to_string()).collect();
        return Err(format!(
            "there is no pair like tls.crt and tls.key, or shop.pem and shop-key.pem, in {}",
            folders.join(", ")
        ));
    }
    let entry = |Cert { cert, key }| CertEntry {
        identity: Identity { chain: Pem::File(cert), key: Pem::File(key) },
        names: Vec::new(),
    };
    let version = |version| match version {
        TlsVersion::V12 => tls::Version::Tls12,
        TlsVersion::V13 => tls::Version::Tls13,
    };
    Ok(ServerSettings {
        client_auth: match &settings.client_auth {
            settings::ClientAuth::None => ClientAuth::None,
            settings::ClientAuth::Optional(ca) => ClientAuth::Optional(Pem::File(ca.clone())),
            settings::ClientAuth::Required(ca) => ClientAuth::Required(Pem::File(ca.clone())),
        },
        versions: Versions::new(version(settings.min_version), version(settings.max_version))
            .map_err(|error| error.to_string())?,
        ..ServerSettings::new(pairs.into_iter().map(entry).collect())
    })
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
        // A mounted Secret's own bookkeeping: the same files under another name.
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
