//! A certificate in DER.
//!
//! Checked: no panic, no control characters in text, and the bytes are kept.

use dafs_tls::{Certificate, SubjectName, UserName};

pub fn run(data: &[u8]) {
    let Ok(certificate) = Certificate::read(data) else { return };
    assert!(&certificate.der()[..] == data);
    let mut texts = vec![certificate.issuer().to_owned(), certificate.subject().to_owned()];
    texts.extend(certificate.names().iter().map(SubjectName::to_string));
    if let UserName::One(user) = certificate.user() {
        assert!(user.matches('@').count() == 1 && user.len() <= 4096);
        texts.push(user.clone());
    }
    texts.push(certificate.serial_text());
    assert!(!texts.iter().any(|text| text.chars().any(char::is_control)));
    for now_seconds in [0, 1_800_000_000, u64::MAX] {
        let _ = certificate.days_left(now_seconds);
    }
}
