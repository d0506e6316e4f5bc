//! Authorities and their folders.

use super::*;
use crate::user::UserName;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const NOW: u64 = 1_800_000_000;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_folder_is_made_once_with_keys_for_its_owner_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("pki");
    let folder = Folder::create(&path, "example CA", NOW).unwrap();
    let server = folder.add_server(&names(&["nas", "192.0.2.1"]), NOW).unwrap();
    let client = folder.add_client(&names(&["host7"]), NOW).unwrap();
    for made in [&folder.authority_files(), &server, &client] {
        assert_eq!(mode(&made.key), 0o600);
        assert_eq!(mode(&made.certificate) & 0o600, 0o600);
        assert_eq!(mode(&made.certificate) & 0o111, 0);
    }
    let before = fs::read(&server.key).unwrap();
    assert!(matches!(Folder::create(&path, "other", NOW), Err(PkiError::Exists(_))));
    assert!(matches!(folder.add_server(&names(&["nas"]), NOW), Err(PkiError::Exists(_))));
    assert_eq!(fs::read(&server.key).unwrap(), before);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 6);
}

#[test]
fn a_folder_has_certificates_of_many_ends() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("pki");
    let folder = Folder::create(&path, "example CA", NOW).unwrap();
    for host in ["host7", "host8"] {
        let made = folder.issue(Use::Client, host, &names(&[host]), None, NOW).unwrap();
        assert_eq!(made.certificate, path.join(format!("{host}.pem")));
    }
    for stem in ["", "../x", ".x", "ca", "ca-key", "-x"] {
        let error = folder.issue(Use::Client, stem, &names(&["x"]), None, NOW);
        assert!(matches!(error, Err(PkiError::Name(_))), "{stem}");
    }
    // Two renewals at a time leave a pair.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| folder.renew(Use::Client, "host7", NOW + 1).unwrap());
        }
    });
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    let own = der(&read("host7.pem"));
    assert!(has_key(&own, &KeyPair::from_pem(&read("host7-key.pem")).unwrap()));
}

#[test]
fn a_renewal_keeps_names_and_authority() {
    let home = tempfile::tempdir().unwrap();
    let folder = Folder::create(&home.path().join("pki"), "example CA", NOW).unwrap();
    let wanted = names(&["nas.example", "2001:db8::1"]);
    let made = folder.add_server(&wanted, NOW).unwrap();
    folder.add_client(&names(&["host7"]), NOW).unwrap();
    let read = || {
        let own = CertificateDer::from_pem_slice(&fs::read(&made.certificate).unwrap()).unwrap();
        Certificate::read(&own).unwrap()
    };
    let old = read();
    let later = NOW + 300 * DAY_SECONDS;
    // An interrupted renewal has left a file behind.
    fs::write(made.key.with_extension("pem.new"), "half").unwrap();
    assert_eq!(Folder::open(&home.path().join("pki")).renew_server(later).unwrap(), made);
    let new = read();
    assert_eq!(new.names(), old.names());
    assert_eq!(new.issuer_der(), old.issuer_der());
    assert_ne!(new.serial(), old.serial());
    assert_eq!(new.days_left(later), 397);
    assert_eq!(mode(&made.key), 0o600);
    assert!(folder.renew_client(later).is_ok());
    assert_eq!(fs::read_dir(home.path().join("pki")).unwrap().count(), 6);
}

#[test]
fn a_renewal_of_nothing_and_of_damage_says_so() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("pki");
    let folder = Folder::create(&path, "CA", NOW).unwrap();
    assert!(matches!(folder.renew_server(NOW), Err(PkiError::Io(..))));
    fs::write(path.join("server.pem"), "no certificate").unwrap();
    assert!(matches!(folder.renew_server(NOW), Err(PkiError::Unreadable(_))));
    let other = Authority::create("CA", NOW).unwrap();
    fs::write(path.join("ca-key.pem"), other.key()).unwrap();
    assert!(matches!(folder.add_client(&names(&["a"]), NOW), Err(PkiError::WrongKey)));
}

#[test]
fn names_are_hosts_or_addresses() {
    let authority = Authority::create("CA", NOW).unwrap();
    for bad in
        ["*.example", "", "a..b", "-a", "a-", "a b", "a\0b", "ex\u{e4}mple", "a_b", &"a".repeat(64)]
    {
        assert!(matches!(authority.server(&names(&[bad]), NOW), Err(PkiError::Name(_))), "{bad:?}");
    }
    assert!(matches!(authority.server(&[], NOW), Err(PkiError::NoName)));
    assert!(matches!(Authority::create("", NOW), Err(PkiError::NoName)));
    assert!(
        authority.server(&names(&["localhost", "::1", "a-b.example", "127.0.0.1"]), NOW).is_ok()
    );
    assert!(authority.server(&names(&["late"]), u64::MAX).is_ok());
}

#[test]
fn another_authoritys_certificate_is_not_taken() {
    let authority = Authority::create("CA", NOW).unwrap();
    let pair = authority.server(&names(&["nas"]), NOW).unwrap();
    assert!(matches!(
        Authority::from_pem(&pair.certificate, &pair.key),
        Err(PkiError::ForeignAuthority)
    ));
    assert!(matches!(
        Authority::from_pem(authority.certificate(), &pair.key),
        Err(PkiError::WrongKey)
    ));
    assert!(matches!(Authority::from_pem("nothing", "nothing"), Err(PkiError::ForeignAuthority)));
    assert!(Authority::from_pem(authority.certificate(), authority.key()).is_ok());
    // An authority with an organisation in its name.
    let mut params = authority_params("CA");
    params.distinguished_name.push(DnType::OrganizationName, "example");
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let foreign = params.self_signed(&key).unwrap().pem();
    let taken = Authority::from_pem(&foreign, &key.serialize_pem());
    assert!(matches!(taken, Err(PkiError::ForeignAuthority)));
}

#[test]
fn debug_shows_no_key() {
    let authority = Authority::create("CA", NOW).unwrap();
    let pair = authority.client(&names(&["host"]), NOW).unwrap();
    assert_eq!(format!("{authority:?} {pair:?}"), "Authority Pair");
}

#[test]
fn a_certificate_names_its_user_and_a_renewal_keeps_it() {
    let home = tempfile::tempdir().unwrap();
    let folder = Folder::create(&home.path().join("pki"), "CA", NOW).unwrap();
    let hosts = names(&["host7"]);
    let user = Some("anna@example.org");
    let made = folder.issue(Use::Client, "host7", &hosts, user, NOW).unwrap();
    for _ in 0..2 {
        let own = der(&fs::read_to_string(&made.certificate).unwrap());
        let read = Certificate::read(&own).unwrap();
        assert_eq!(*read.user(), UserName::One("anna@example.org".to_owned()));
        assert_eq!(read.names().len(), 1);
        folder.renew(Use::Client, "host7", NOW).unwrap();
    }
    // One who counts as nobody stays so.
    let mut params = CertificateParams::default();
    for user in ["anna@example.org", "bert@example.org"] {
        let value = OtherNameValue::Utf8String(user.to_owned());
        params.subject_alt_names.push(SanType::OtherName((USER.to_vec(), value)));
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    fs::write(&made.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    let refused = folder.renew(Use::Client, "host7", NOW);
    assert!(matches!(refused, Err(PkiError::UnclearUser(_))), "{refused:?}");
    for bad in ["", "anna", "anna@", "@b", "a@b@c", "a\n@b"] {
        let refused = folder.issue(Use::Client, "other", &hosts, Some(bad), NOW);
        assert!(matches!(refused, Err(PkiError::User(_))), "{bad:?}");
    }
}
