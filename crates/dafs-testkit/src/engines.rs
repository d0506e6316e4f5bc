//! Clusters of storage engines on loopback, for tests of an engine.

use crate::stores::{is_root, missing};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running cluster.
pub struct EngineCluster {
    /// The line by which its script describes it.
    pub description: String,
    /// Ends when its input does, with all daemons and their directory.
    _holder: Child,
}

/// Starts a cluster of GlusterFS with three bricks, as `lab/engines/glusterfs.sh` describes it: its
/// directory and its server. `None` where that is impossible.
pub fn glusterfs() -> Option<EngineCluster> {
    if !is_root() {
        missing("no glusterfs to test with: bricks need root");
        return None;
    }
    start("glusterfs", &["glusterd", "glusterfsd", "gluster"])
}

/// Starts a cluster of CephFS with three storage daemons, as `lab/engines/cephfs.sh` describes it:
/// its configuration. `None` where that is impossible.
pub fn cephfs() -> Option<EngineCluster> {
    start("cephfs", &["ceph-mon", "ceph-osd", "ceph-mds", "ceph"])
}

fn start(name: &str, programs: &[&str]) -> Option<EngineCluster> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed =
        |program: &&&str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    if let Some(program) = programs.iter().find(|program| !is_installed(program)) {
        missing(&format!("no {name} to test with: {program} is not installed"));
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../lab/engines/{name}.sh"));
    let mut holder = Command::new("bash")
        .arg(script)
        .arg("hold")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Some(EngineCluster { description: line.trim().to_owned(), _holder: holder })
}
