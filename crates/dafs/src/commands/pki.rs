//! `dafs pki`: a small authority, with certificates for servers and clients.
//!
//! Invariants
//! * Keys are in files of mode 0600. Nothing is overwritten without `--renew`.
//! * The output names the next two steps, ready to be copied.

use crate::failure::Failure;
use crate::output::say;
use clap::Subcommand;
use dafs_tls::pki::{Folder, Made, PkiError, Use};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Make an authority, and certificates for servers and clients (TLS)
///
/// The folder of the authority holds ca.pem, which servers and clients trust, and ca-key.pem,
/// which no other machine needs.
#[derive(Debug, clap::Args)]
pub(crate) struct Pki {
    #[command(subcommand)]
    step: Step,
}

#[derive(Debug, Subcommand)]
enum Step {
    /// Make a folder with a new authority
    Init {
        /// The folder; it must not exist
        folder: PathBuf,
        /// The name of the authority
        #[arg(long, default_value = "dafs CA")]
        name: String,
    },
    /// Issue a certificate for a server
    Server(Issue),
    /// Issue a certificate for a client machine
    Client {
        #[command(flatten)]
        issue: Issue,
        /// All that the client does is done as this user: a name for the rules of the server's
        /// configuration, [[identity]] with certificate = "NAME@DOMAIN"
        #[arg(long, value_name = "NAME@DOMAIN", conflicts_with = "renew")]
        for_user: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Issue {
    /// The folder of the authority
    folder: PathBuf,
    /// The names and addresses of the machine. Those of a server must be the ones that clients use
    #[arg(required = true)]
    names: Vec<String>,
    /// Replace the certificate of the first name; its names and its user stay
    #[arg(long)]
    renew: bool,
}

impl Pki {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.step {
            Step::Init { folder, name } => init(folder, name),
            Step::Server(issue) => issue.run(Use::Server, None),
            Step::Client { issue, for_user } => issue.run(Use::Client, for_user.as_deref()),
        }
    }
}

fn init(folder: &Path, name: &str) -> Result<(), Failure> {
    Folder::create(folder, name, now_seconds()).map_err(failure)?;
    let shown = folder.display();
    say!(
        "{shown}/ca.pem is for every server and client, {shown}/ca-key.pem for this machine alone."
    )?;
    say!("Next, with the names that clients use:")?;
    say!("  dafs pki server {shown} NAME [ADDRESS...]")
}

impl Issue {
    fn run(&self, purpose: Use, user: Option<&str>) -> Result<(), Failure> {
        let folder = Folder::open(&self.folder);
        // INVARIANT: the parser demands a name.
        let stem = self.names.first().map_or("", String::as_str);
        let made = match self.renew {
            true => folder.renew(purpose, stem, now_seconds()),
            false => folder.issue(purpose, stem, &self.names, user, now_seconds()),
        };
        let made = made.map_err(failure)?;
        let (certificate, key) = (made.certificate.display(), made.key.display());
        say!("{certificate} and {key} are valid for 397 days.")?;
        if self.renew {
            return say!("Copy both to {stem}; a running server takes them by itself.");
        }
        match purpose {
            Use::Server => told_server(stem, &made, &folder.authority_files())?,
            Use::Client => told_client(stem, &made, &folder.authority_files())?,
        }
        match user {
            Some(user) => told_rule(user),
            None => Ok(()),
        }
    }
}

fn told_server(host: &str, made: &Made, authority: &Made) -> Result<(), Failure> {
    let ca = authority.certificate.display();
    let (certificate, key) = (made.certificate.display(), made.key.display());
    say!("On the server, keep the key of mode 0600, and write in its configuration:")?;
    say!("  [tls]")?;
    say!("  certificate = \"{}\"", name_of(&made.certificate))?;
    say!("  key = \"{}\"", name_of(&made.key))?;
    say!("  authorities = \"{}\"", name_of(&authority.certificate))?;
    say!("and in each [[export]] that demands it: transport_security = \"tls\", or \"mtls\"")?;
    say!("Two commands bring the files there and show them:")?;
    say!("  scp -p {certificate} {key} {ca} {host}:/etc/dafs/")?;
    say!("  ssh {host} dafs doctor --config /etc/dafs/dafs.toml")
}

fn told_client(host: &str, made: &Made, authority: &Made) -> Result<(), Failure> {
    let ca = authority.certificate.display();
    let (certificate, key) = (made.certificate.display(), made.key.display());
    let at = |path: &Path| format!("/etc/dafs/{}", name_of(path));
    let (own, own_key) = (at(&made.certificate), at(&made.key));
    say!("Two commands bring the files to the client and try them:")?;
    say!("  scp -p {certificate} {key} {ca} {host}:/etc/dafs/")?;
    say!(
        "  ssh {host} dafs ls \"'nfs://SERVER/?xprtsec=mtls&ca={}&cert={own}&key={own_key}'\"",
        at(&authority.certificate)
    )?;
    say!("For mount -t nfs -o xprtsec=mtls, name the same files in /etc/tlshd.conf of the client.")
}

fn told_rule(user: &str) -> Result<(), Failure> {
    say!("On the server, a rule in its configuration says who {user} is there:")?;
    say!("  [[identity]]")?;
    say!("  certificate = {}", toml_text(user))?;
    say!("  user = \"local\"")
}

/// A text without control characters as a string of TOML.
fn toml_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The name of a file without its folder.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn failure(error: PkiError) -> Failure {
    match error {
        PkiError::Io(..) => Failure::Failed(error.to_string()),
        error => Failure::Usage(error.to_string()),
    }
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_issues_and_renews_and_overwrites_nothing() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("pki");
        init(&folder, "CA").unwrap();
        assert!(matches!(init(&folder, "CA"), Err(Failure::Usage(_))));
        let issue = |name: &str, renew| Issue {
            folder: folder.clone(),
            names: vec![name.to_owned(), "192.0.2.1".to_owned()],
            renew,
        };
        for (name, purpose) in [("nas", Use::Server), ("host7", Use::Client)] {
            let user = (purpose == Use::Client).then_some("anna@example.org");
            issue(name, false).run(purpose, user).unwrap();
            let read = || std::fs::read(folder.join(format!("{name}.pem"))).unwrap();
            let first = read();
            assert!(matches!(issue(name, false).run(purpose, None), Err(Failure::Usage(_))));
            assert!(read() == first);
            issue(name, true).run(purpose, None).unwrap();
            assert!(read() != first);
        }
        assert!(matches!(issue("*.nas", false).run(Use::Server, None), Err(Failure::Usage(_))));
        assert_eq!(toml_text("a\\\"n\u{301}na'@b"), "\"a\\\\\\\"n\u{301}na'@b\"");
        let no_user = issue("host8", false).run(Use::Client, Some("anna"));
        assert!(matches!(no_user, Err(Failure::Usage(_))));
    }
}
