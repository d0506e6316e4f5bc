//! The configuration of a data server in a process of its own, for a file system that keeps the
//! files.

use super::cephfs::OsdFile;
use super::gluster::BrickFile;
use super::keys::table;
use super::read_text;
use dafs_store::own::OwnError;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The part of another file system that a data server is local to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineConfig {
    /// Storage daemons of a CephFS.
    Ceph(OsdConfig),
    /// A brick of a volume of GlusterFS.
    Gluster(BrickConfig),
}

/// Storage daemons, and the identity at their file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OsdConfig {
    /// The configuration of the cluster. `None` for ceph's usual places.
    pub conf: Option<PathBuf>,
    /// The user of the cluster, without "client.". `None` for admin.
    pub id: Option<String>,
    /// The user's key. `None` for the place in the configuration of the cluster.
    pub keyring: Option<PathBuf>,
    /// The file system. `None` for the cluster's default one.
    pub fs: Option<String>,
    /// A directory with all files in it, from the top of the file system.
    pub root: String,
    /// The numbers of the storage daemons (OSDs).
    pub osds: Vec<u32>,
}

/// A brick of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrickConfig {
    /// The volume.
    pub volume: String,
    /// Hosts whose management daemons know the volume, with their ports where these are not the
    /// default.
    pub servers: Vec<(String, Option<u16>)>,
    /// The brick, in the volume's notation: HOST:PATH.
    pub brick: String,
}

/// An error in the file.
#[derive(Debug, Error)]
#[error("{path}: {remedy}", path = .path.display())]
pub struct EngineError {
    path: PathBuf,
    remedy: String,
}

table! {
    pub(super) struct EngineFile {
        /// Storage daemons of a CephFS.
        ceph: Option<OsdFile>,
        /// A brick of a volume of GlusterFS.
        gluster: Option<BrickFile>,
    }
}

impl EngineConfig {
    /// Returns the name of the file system.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ceph(_) => "CephFS",
            Self::Gluster(_) => "GlusterFS",
        }
    }

    /// Reads the file of a data server: the table `[ceph]` or `[gluster]`.
    ///
    /// # Errors
    /// The error in the file.
    pub fn load(path: &Path) -> Result<Self, EngineError> {
        let wrong = |remedy: String| EngineError { path: path.to_owned(), remedy };
        let text = read_text(path).map_err(|error| match error {
            OwnError::Io(_, error) => wrong(error.to_string()),
            error => wrong(error.to_string()),
        })?;
        let file: EngineFile = toml::from_str(&text)
            .map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
        let base = path.parent().unwrap_or(Path::new("."));
        match (file.ceph, file.gluster) {
            (Some(ceph), None) => ceph.check(base).map(Self::Ceph).map_err(wrong),
            (None, Some(gluster)) => gluster.check().map(Self::Gluster).map_err(wrong),
            _ => {
                let remedy = "say what the data server is next to: [ceph] with osds, or [gluster] with \
                              volume, servers and brick";
                Err(wrong(remedy.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<EngineConfig, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("engine.toml");
        std::fs::write(&path, text).expect("written");
        EngineConfig::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_brick_is_named_and_mistakes_are_told() {
        let good = "[gluster]\nvolume = \"v\"\nservers = [\"h:7\"]\nbrick = \"h:/b\"\n";
        let Ok(EngineConfig::Gluster(brick)) = load(good) else { panic!("a brick") };
        assert_eq!((brick.volume.as_str(), brick.brick.as_str()), ("v", "h:/b"));
        assert_eq!(brick.servers, [("h".to_owned(), Some(7))]);
        for (text, expected) in [
            (String::new(), "[ceph] with osds"),
            (format!("[ceph]\nosds = [0]\n{good}"), "[ceph] with osds"),
            (good.replace("h:/b", "h"), "HOST:PATH"),
            (good.replace("h:7", "h:x"), "no HOST:PORT"),
            (good.replace("\"h:7\"", ""), "servers = [\"HOST\"]"),
            (good.replace("\"v\"", "\"a/b\""), "volume list"),
            (good.replace("brick =", "bricks ="), "bricks"),
        ] {
            let error = load(&text).expect_err(&text);
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        }
    }

    #[test]
    fn storage_daemons_are_named_and_mistakes_are_told() {
        let Ok(EngineConfig::Ceph(ceph)) = load("[ceph]\nosds = [0, 3]\n") else {
            panic!("daemons")
        };
        assert_eq!((ceph.root.as_str(), &ceph.osds[..], ceph.conf), ("/", &[0, 3][..], None));
        for (text, expected) in [
            ("[ceph]\nosds = []\n", "osds = [0, 1]"),
            ("[ceph]\nosds = [0]\nconf = \"gone\"\n", "gone is not there"),
            ("[ceph]\nosds = [0]\nid = \"client.x\"\n", "without \"client.\""),
            ("[ceph]\nosds = [0]\nroot = \"x\"\n", "\"/\" first"),
        ] {
            let error = load(text).expect_err(text);
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        }
    }
}
