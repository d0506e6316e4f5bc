//! Files as administrators leave them.

use super::*;
use crate::config::{Reload, ReloadingServer};
use crate::pki::{Folder, Made};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const NOW: u64 = 1_800_000_000;

struct Home {
    directory: tempfile::TempDir,
    folder: Folder,
    server: Made,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::create(&directory.path().join("pki"), "CA", NOW).unwrap();
        let server = folder.add_server(&["nas".to_owned(), "192.0.2.9".to_owned()], NOW).unwrap();
        Self { directory, folder, server }
    }

    fn files(&self) -> ServerFiles {
        ServerFiles {
            certificate: self.server.certificate.clone(),
            key: self.server.key.clone(),
            authorities: Some(self.folder.authority_files().certificate),
            revocations: None,
            policy: TransportSecurity::Mtls,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a file with this mode, and returns its path.
    fn put(&self, name: &str, mode: u32, text: &[u8]) -> PathBuf {
        let path = self.path(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

fn refused(files: &ServerFiles) -> ConfigError {
    match files.load(NOW) {
        Err(error) => error,
        Ok(_) => panic!("{files:?} is taken"),
    }
}

#[test]
fn good_files_are_taken() {
    let home = Home::new();
    let side = home.files().load(NOW).unwrap();
    assert_eq!(side.generation(), 1);
    assert_eq!(side.policy(), TransportSecurity::Mtls);
    assert_eq!(side.identity().days_left(NOW), 397);
    let names: Vec<String> = side.identity().names().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["nas", "192.0.2.9"]);
    let client = home.folder.add_client(&["host".to_owned()], NOW).unwrap();
    let files = ClientFiles {
        authorities: home.folder.authority_files().certificate,
        revocations: None,
        certificate: Some(client.certificate.clone()),
        key: Some(client.key.clone()),
    };
    assert!(files.load(NOW).unwrap().identity().is_some());
    let alone = ClientFiles { key: None, ..files.clone() };
    assert!(matches!(alone.load(NOW), Err(ConfigError::NamedAlone)));
    let none = ClientFiles { key: None, certificate: None, ..files };
    assert!(none.load(NOW).unwrap().identity().is_none());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let home = Home::new();
    for mode in [0o640, 0o604, 0o660, 0o644] {
        fs::set_permissions(&home.server.key, fs::Permissions::from_mode(mode)).unwrap();
        let error = refused(&home.files());
        assert!(
            matches!(&error, ConfigError::KeyOpen(path) if *path == home.server.key),
            "{error}"
        );
        assert!(error.to_string().contains("chmod 600"));
    }
    fs::set_permissions(&home.server.key, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(home.files().load(NOW).is_ok());
}

/// Certificates, authorities and revocation lists are judged as the configuration is.
#[test]
fn trust_that_others_can_write_is_refused() {
    let home = Home::new();
    // The modes are judged before the contents.
    let list = home.put("list", 0o644, b"no list");
    let files = ServerFiles { revocations: Some(list.clone()), ..home.files() };
    let is_refused = |path: &Path| match refused(&files) {
        ConfigError::Writable(of) => of == path,
        _ => false,
    };
    for path in [&files.certificate, files.authorities.as_ref().unwrap(), &list] {
        let set = |mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o666, 0o646] {
            set(mode);
            assert!(is_refused(path), "{path:?} {mode:o}");
        }
        // An ordinary user's own group is as good as the user.
        set(0o664);
        assert_eq!(is_refused(path), rustix::process::geteuid().is_root());
        set(0o644);
        assert!(!is_refused(path));
    }
}

#[test]
fn files_of_other_users_are_refused() {
    let home = Home::new();
    let link = home.path("link");
    std::os::unix::fs::symlink(&home.server.key, &link).unwrap();
    let files = ServerFiles { key: link.clone(), ..home.files() };
    assert!(files.load(NOW).is_ok());
    let own = rustix::process::geteuid().as_raw();
    assert!(check_owner(&link, own).is_ok() && check_owner(&link, 0).is_ok());
    let error = check_owner(&link, own + 1).unwrap_err();
    assert!(error.to_string().contains("who could change whom this program trusts"), "{error}");
    if own != 0 {
        return;
    }
    // Only root can give a file away.
    std::os::unix::fs::chown(&home.server.key, Some(1), None).unwrap();
    assert!(matches!(refused(&home.files()), ConfigError::Owner { owner: 1, .. }));
    std::os::unix::fs::chown(&home.server.key, Some(0), None).unwrap();
    std::os::unix::fs::lchown(&link, Some(1), None).unwrap();
    assert!(matches!(refused(&files), ConfigError::Owner { owner: 1, .. }));
}

#[test]
fn the_wrong_key_is_named() {
    let home = Home::new();
    let other = Home::new();
    let files = ServerFiles { key: other.server.key.clone(), ..home.files() };
    let error = refused(&files);
    assert!(matches!(error, ConfigError::Mismatch { .. }), "{error}");
    assert!(error.to_string().contains("does not belong to the first certificate"));
}

#[test]
fn the_clock_and_the_end_of_a_certificate_are_told() {
    let home = Home::new();
    let error = home.files().load(NOW + 400 * DAY_SECONDS).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("ended 3 days ago"), "{error}");
    let error = home.files().load(NOW - 7200).map(|_| ()).unwrap_err();
    assert!(matches!(error, ConfigError::NotYetValid { seconds: 3600, .. }), "{error}");
}

#[test]
fn folders_empty_files_and_missing_files_are_told() {
    let home = Home::new();
    let folder = ServerFiles { authorities: Some(home.path("pki")), ..home.files() };
    assert!(refused(&folder).to_string().contains("is a folder; name one file"));
    let pipe = ServerFiles { certificate: PathBuf::from("/dev/null"), ..home.files() };
    assert!(matches!(refused(&pipe), ConfigError::NoFile(_)));
    let empty = ServerFiles { certificate: home.put("empty", 0o644, b""), ..home.files() };
    assert!(matches!(refused(&empty), ConfigError::Empty(_)));
    let missing = ServerFiles { key: home.path("nothing"), ..home.files() };
    assert!(matches!(refused(&missing), ConfigError::Missing(_)));
    let long = vec![b'#'; FILE_BYTES_MAX as usize + 1];
    let long = ServerFiles { certificate: home.put("long", 0o644, &long), ..home.files() };
    assert!(matches!(refused(&long), ConfigError::TooLong(_)));
}

#[test]
fn wrong_contents_are_told_apart() {
    let home = Home::new();
    let files = home.files();
    let certificate = fs::read(&files.certificate).unwrap();
    let key = fs::read(&files.key).unwrap();
    let swapped = ServerFiles { certificate: home.put("a", 0o600, &key), ..files.clone() };
    assert!(matches!(refused(&swapped), ConfigError::NoCertificate(_)));
    let swapped = ServerFiles { key: home.put("a", 0o600, &certificate), ..files.clone() };
    assert!(matches!(refused(&swapped), ConfigError::NoKey(_)));
    let cut =
        ServerFiles { certificate: home.put("a", 0o644, &certificate[..200]), ..files.clone() };
    assert!(matches!(refused(&cut), ConfigError::Pem { .. }));
    let junk = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let junk = home.put("a", 0o644, junk);
    let wrong = ServerFiles { certificate: junk.clone(), ..files.clone() };
    assert!(matches!(refused(&wrong), ConfigError::Certificate(_)));
    let wrong = ServerFiles { authorities: Some(junk), ..files.clone() };
    assert!(matches!(refused(&wrong), ConfigError::Authority { number: 1, .. }));
    let secret =
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let secret = ServerFiles { key: home.put("a", 0o600, secret), ..files.clone() };
    assert!(refused(&secret).to_string().contains("passphrase"));
    let junk = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let junk = ServerFiles { key: home.put("a", 0o600, junk), ..files.clone() };
    assert!(matches!(refused(&junk), ConfigError::KeyUnusable(_)));
    let lists = ServerFiles { revocations: Some(files.certificate.clone()), ..files.clone() };
    assert!(matches!(refused(&lists), ConfigError::NoRevocations(_)));
    let junk = b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let lists = ServerFiles { revocations: Some(home.put("a", 0o644, junk)), ..files };
    assert!(matches!(refused(&lists), ConfigError::Revocations { .. }));
}

#[test]
fn policies_need_their_files() {
    let home = Home::new();
    let none = ServerFiles { authorities: None, ..home.files() };
    assert!(matches!(refused(&none), ConfigError::NoAuthorities));
    let tls = ServerFiles { policy: TransportSecurity::Tls, ..none };
    assert!(tls.load(NOW).is_ok());
    let lists = ServerFiles { revocations: Some(home.path("list")), ..tls };
    assert!(matches!(refused(&lists), ConfigError::NoUseForRevocations));
    let client = home.folder.add_client(&["host".to_owned()], NOW).unwrap();
    let wrong = ServerFiles { certificate: client.certificate, key: client.key, ..home.files() };
    assert!(refused(&wrong).to_string().contains("lacks serverAuth"));
    let wrong = ClientFiles {
        authorities: home.folder.authority_files().certificate,
        revocations: None,
        certificate: Some(home.server.certificate.clone()),
        key: Some(home.server.key.clone()),
    };
    let error = wrong.load(NOW).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("lacks clientAuth"), "{error}");
}

#[test]
fn a_reload_takes_good_files_and_keeps_the_old_for_broken_ones() {
    let home = Home::new();
    let server = ReloadingServer::open(home.files(), NOW).unwrap();
    let first = server.current();
    assert_eq!(server.reload(NOW).unwrap(), Reload::Unchanged);
    assert_eq!(server.current().generation(), 1);
    let old_key = fs::read(&home.server.key).unwrap();
    let old_certificate = fs::read(&home.server.certificate).unwrap();
    home.folder.renew_server(NOW + 1).unwrap();
    let new_key = fs::read(&home.server.key).unwrap();
    let put = |path: &Path, bytes: &[u8]| fs::write(path, bytes).unwrap();
    // Between the two files of a renewal.
    put(&home.server.key, &old_key);
    assert!(matches!(server.reload(NOW), Err(ConfigError::Mismatch { .. })));
    put(&home.server.key, b"");
    assert!(matches!(server.reload(NOW), Err(ConfigError::Empty(_))));
    fs::remove_file(&home.server.key).unwrap();
    assert!(matches!(server.reload(NOW), Err(ConfigError::Missing(_))));
    assert!(Arc::ptr_eq(&first, &server.current()));
    home.put("new", 0o600, &new_key);
    fs::rename(home.path("new"), &home.server.key).unwrap();
    assert_eq!(server.reload(NOW).unwrap(), Reload::Changed { generation: 2 });
    assert_eq!(server.current().generation(), 2);
    let serial = server.current().identity().certificate().serial().to_vec();
    assert_ne!(serial, first.identity().certificate().serial());
    assert_eq!(server.reload(NOW).unwrap(), Reload::Unchanged);
    put(&home.server.certificate, &old_certificate);
    put(&home.server.key, &old_key);
    assert_eq!(server.reload(NOW).unwrap(), Reload::Changed { generation: 3 });
    assert_eq!(first.generation(), 1);
}

#[test]
fn files_are_read_again_when_they_change() {
    let home = Home::new();
    let server = ReloadingServer::open(home.files(), NOW).unwrap();
    assert_eq!(server.follow(NOW).unwrap(), Reload::Unchanged);
    home.folder.renew_server(NOW + 1).unwrap();
    assert_eq!(server.follow(NOW).unwrap(), Reload::Changed { generation: 2 });
    assert_eq!(server.follow(NOW).unwrap(), Reload::Unchanged);
    // A broken file is told once, and looked at again when it changes.
    let good = fs::read(&home.server.certificate).unwrap();
    home.put("pki/server.pem", 0o644, b"");
    assert!(matches!(server.follow(NOW), Err(ConfigError::Empty(_))));
    assert_eq!(server.follow(NOW).unwrap(), Reload::Unchanged);
    fs::remove_file(&home.server.certificate).unwrap();
    assert!(matches!(server.follow(NOW), Err(ConfigError::Missing(_))));
    home.put("pki/server.pem", 0o644, &good);
    assert_eq!(server.follow(NOW).unwrap(), Reload::Unchanged);
    assert_eq!(server.current().generation(), 2);
}

#[test]
fn a_failure_that_passes_is_told_once_and_tried_again() {
    let home = Home::new();
    let server = ReloadingServer::open(home.files(), NOW).unwrap();
    let valid = NOW + 2 * DAY_SECONDS;
    home.folder.renew_server(valid).unwrap();
    assert!(matches!(server.follow(NOW), Err(ConfigError::NotYetValid { .. })));
    assert_eq!(server.follow(NOW + 1).unwrap(), Reload::Unchanged);
    assert_eq!(server.current().generation(), 1);
    // The files are as before, and the clock has gone on.
    assert_eq!(server.follow(valid).unwrap(), Reload::Changed { generation: 2 });
}

#[test]
fn a_new_certificate_of_the_server_puts_no_client_in_doubt() {
    let home = Home::new();
    let server = ReloadingServer::open(home.files(), NOW).unwrap();
    home.folder.renew_server(NOW + 1).unwrap();
    assert_eq!(server.follow(NOW).unwrap(), Reload::Changed { generation: 2 });
    assert_eq!(server.current().trust_generation(), 1);
    let other = Folder::create(&home.path("other"), "other CA", NOW).unwrap();
    let trusted = fs::read(other.authority_files().certificate).unwrap();
    let authority = home.folder.authority_files().certificate;
    let own = fs::read(&authority).unwrap();
    fs::write(&authority, trusted).unwrap();
    assert_eq!(server.follow(NOW).unwrap(), Reload::Changed { generation: 3 });
    assert_eq!(server.current().trust_generation(), 3);
    fs::write(&authority, own).unwrap();
    assert_eq!(server.follow(NOW).unwrap(), Reload::Changed { generation: 4 });
    home.folder.renew_server(NOW + 2).unwrap();
    assert_eq!(server.follow(NOW).unwrap(), Reload::Changed { generation: 5 });
    assert_eq!(server.current().trust_generation(), 4);
}

#[test]
fn a_certificate_that_has_ended_keeps_no_new_list_out() {
    let home = Home::new();
    let server = ReloadingServer::open(home.files(), NOW).unwrap();
    let late = NOW + 500 * DAY_SECONDS;
    let other = Folder::create(&home.path("other"), "other CA", NOW).unwrap();
    let trusted = fs::read(other.authority_files().certificate).unwrap();
    fs::write(home.folder.authority_files().certificate, trusted).unwrap();
    assert_eq!(server.follow(late).unwrap(), Reload::Changed { generation: 2 });
    assert!(server.current().identity().days_left(late) < 0);
    assert!(matches!(home.files().load(late), Err(ConfigError::Expired { .. })));
}
