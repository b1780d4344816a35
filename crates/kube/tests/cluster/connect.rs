//! Clients for the API server from a kubeconfig.

use std::path::{Path, PathBuf};

use rouse_kube::client::connect::{ConnectError, connect};
use tempfile::TempDir;

/// A kubeconfig in a folder of its own.
fn kubeconfig(contexts: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let entries: Vec<String> = contexts
        .iter()
        .map(|name| format!("- {{name: {name}, context: {{cluster: c, user: u, namespace: in-{name}}}}}"))
        .collect();
    let text = format!(
        "clusters:\n- {{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}\nusers:\n- {{name: u, user: {{}}}}\n\
         contexts: {}\n{}\ncurrent-context: {}\n",
        if entries.is_empty() { "[]" } else { "" },
        entries.join("\n"),
        contexts.first().unwrap_or(&"''"),
    );
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

async fn refused(path: &Path, context: Option<&str>) -> ConnectError {
    match connect(Some(path), context).await {
        Ok(_) => panic!("{context:?} is there"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn the_named_context_is_used_and_else_the_current_one() {
    let (_folder, path) = kubeconfig(&["one", "two"]);
    for (context, namespace) in [(None, "in-one"), (Some("one"), "in-one"), (Some("two"), "in-two")] {
        let client = connect(Some(&path), context).await.unwrap();
        assert_eq!(client.default_namespace(), namespace);
    }
}

#[tokio::test]
async fn an_unknown_context_is_reported_with_the_known_ones() {
    for (contexts, there) in
        [(&["one", "two"][..], "it has one, two"), (&["one"], "it has one"), (&[], "it has none")]
    {
        let (_folder, path) = kubeconfig(contexts);
        let reported = refused(&path, Some("three")).await.to_string();
        let expected = format!("the kubeconfig {} has no context \"three\"; {there}", path.display());
        assert_eq!(reported, expected);
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nothing");
    for context in [None, Some("one")] {
        let error = refused(&path, context).await;
        assert_eq!(error.to_string(), format!("the kubeconfig {} does not exist", path.display()));
    }
}
