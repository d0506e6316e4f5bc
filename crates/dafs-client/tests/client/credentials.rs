//! Users and passwords that the application returns when it is asked.

use crate::served::{Served, TRANSPORTS};
use dafs_client::{Authentication, Client, ConnectOptions, Credential, Error};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Makes this the only user's password.
fn set_password(path: &Path, password: &str) {
    let me = std::fs::metadata("/proc/self").unwrap();
    let line = dafs_engine::password_line("anna", me.uid(), me.gid(), &[], password.as_bytes());
    std::fs::write(path, line + "\n").unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_connection_that_is_replaced_asks_again() {
    for transport in TRANSPORTS {
        let passwords = tempfile::TempDir::new().unwrap();
        let path = passwords.path().join("users");
        set_password(&path, "first");
        let mut served = Served::with(|setup| setup.auth.password_file = Some(path.clone()));
        let password = Arc::new(Mutex::new("first"));
        let asked = Arc::new(AtomicUsize::new(0));
        let (current, count) = (password.clone(), asked.clone());
        let client = served.client_with(|options| {
            options.transport = transport;
            options.credential = Credential::Session;
            options.authentication = Authentication::callback(move || {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(("anna".to_owned(), (*current.lock().unwrap()).to_owned()))
            });
        });
        client.ping().unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // The password changes while there is no connection.
        served.stop();
        set_password(&path, "second");
        *password.lock().unwrap() = "second";
        served.start();
        client.ping().unwrap();
        assert!(client.stats().recoveries > 0, "{:?}", client.stats());
        assert!(asked.load(Ordering::SeqCst) > 1);
    }
}

#[test]
fn a_callback_without_credentials_is_an_error() {
    let passwords = tempfile::TempDir::new().unwrap();
    let path = passwords.path().join("users");
    set_password(&path, "first");
    let served = Served::with(|setup| setup.auth.password_file = Some(path));
    let refused = |authentication| {
        let options = ConnectOptions { authentication, ..ConnectOptions::default() };
        let error = Client::connect(&served.url, &options).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        error.to_string()
    };
    let none = refused(Authentication::callback(|| Err("the key ring is locked".into())));
    assert!(none.contains("the key ring is locked"), "{none}");
    let panicked = refused(Authentication::callback(|| panic!("no key ring")));
    assert!(panicked.contains("has panicked"), "{panicked}");
    refused(Authentication::callback(|| Ok(("anna".into(), "wrong".into()))));
    refused(Authentication::callback(|| Ok(("anna\0".into(), "first".into()))));
    refused(Authentication::callback(|| Ok(("a".repeat(1 << 20), "first".into()))));
}
