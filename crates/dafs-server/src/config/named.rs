//! The files that a configuration names, and that must be there when a server starts.

use super::{Config, ConfigError, ExportSource, read_text, wrong};
use std::io::ErrorKind;
use std::path::Path;

const CERTIFICATES: &str = "make it with: dafs pki init FOLDER, then dafs pki server FOLDER NAME";

impl Config {
    /// Refuses a configuration that names a missing file. The code that reads a file reports its other
    /// errors.
    ///
    /// # Errors
    /// The first missing file, with the line of its key and the remedy.
    pub(crate) fn check_named_files(&self) -> Result<(), ConfigError> {
        let Some(config) = &self.file else { return Ok(()) };
        let tls = self.tls.as_ref();
        let files = [
            ("password_file", self.auth.password_file.as_deref()),
            ("tls.certificate", tls.map(|files| files.certificate.as_path())),
            ("tls.key", tls.map(|files| files.key.as_path())),
            ("tls.authorities", tls.and_then(|files| files.authorities.as_deref())),
            ("kerberos.keytab", self.kerberos.as_ref().map(|kerberos| kerberos.keytab.as_path())),
            (
                "cluster.secret",
                self.exports.iter().find_map(|export| export.source.cluster_secret()),
            ),
        ];
        let mut named = files.into_iter().filter_map(|(key, path)| Some((key, path?)));
        let Some((key, path)) = named.find(|(_, path)| is_missing(path)) else { return Ok(()) };
        let path = path.display();
        let remedy = match key {
            "password_file" => format!("make it with: dafs passwd {path} USER --uid N --gid N"),
            "cluster.secret" => {
                format!(
                    "copy it from another server, or make it: dafs cluster init --secret {path}"
                )
            }
            "kerberos.keytab" => {
                let service = self.kerberos.as_ref().map(|kerberos| kerberos.nfs.as_str());
                let principal = service.unwrap_or("nfs@HOST").replace('@', "/");
                format!("write it: kadmin ktadd -k {path} {principal}")
            }
            _ => CERTIFICATES.to_owned(),
        };
        // The line is that of the file as it is now.
        let text = read_text(config).unwrap_or_default();
        Err(wrong(key, format!("cannot read {path}: there is no such file; {remedy}"))
            .locate(config, &text))
    }
}

impl ExportSource {
    /// Returns the file with the secret of the cluster, if data servers run in other processes.
    pub(crate) fn cluster_secret(&self) -> Option<&Path> {
        match self {
            Self::Striped { cluster_secret, .. } => cluster_secret.as_deref(),
            Self::CephFs(ceph) => ceph.cluster_secret.as_deref(),
            Self::Gluster(gluster) => gluster.cluster_secret.as_deref(),
            Self::Directory(_) | Self::Memory { .. } => None,
        }
    }
}

fn is_missing(path: &Path) -> bool {
    matches!(path.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::tests::EXPORT;

    #[test]
    fn a_missing_file_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let path = folder.path().join("dafs.toml");
        let check = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let checked = Config::load(&path).unwrap().check_named_files();
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check(EXPORT), Ok(()));
        let passwords = format!("# users\npassword_file = \"users\"\n{EXPORT}");
        let error = check(&passwords).unwrap_err();
        assert!(error.contains("dafs.toml line 2: password_file: cannot read"), "{error}");
        assert!(error.contains("users USER --uid"), "{error}");
        std::fs::write(folder.path().join("users"), "").unwrap();
        assert_eq!(check(&passwords), Ok(()));
        let tls =
            format!("{EXPORT}[tls]\ncertificate = \"server.pem\"\nkey = \"server-key.pem\"\n");
        let error = check(&tls).unwrap_err();
        assert!(error.contains("line 5: tls.certificate: cannot read"), "{error}");
        assert!(error.contains("dafs pki server"), "{error}");
        std::fs::write(folder.path().join("server.pem"), "").unwrap();
        assert!(check(&tls).unwrap_err().contains("line 6: tls.key: cannot read"));
        let kerberos =
            format!("{EXPORT}[kerberos]\nkeytab = \"keytab\"\nhost = \"nas.example.org\"\n");
        let error = check(&kerberos).unwrap_err();
        assert!(error.contains("line 5: kerberos.keytab: cannot read"), "{error}");
        assert!(error.contains("keytab nfs/nas.example.org"), "{error}");
        std::fs::write(folder.path().join("keytab"), "").unwrap();
        assert_eq!(check(&kerberos), Ok(()));
        let node = "[[export.node]]\nnumber = 1\ncontrol = \"192.0.2.2:2052\"\n";
        let error = check(&format!("[cluster]\nsecret = \"secret\"\n{EXPORT}{node}")).unwrap_err();
        assert!(error.contains("line 2: cluster.secret: cannot read"), "{error}");
        assert!(error.contains("dafs cluster init --secret"), "{error}");
    }
}
