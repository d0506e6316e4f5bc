//! Keytabs with any content.
//!
//! Checked: no panic; an entry takes bytes of the file, so there are no more entries than the file has room for.

/// The length of an entry without components, realm and key, with its length in front, in bytes.
const ENTRY_BYTES_MIN: usize = 4 + 2 + 2 + 8 + 1 + 2 + 2;

pub fn run(data: &[u8]) {
    if let Ok(entries) = dafs_gss::keytab::parse(data) {
        assert!(entries.len() <= data.len() / ENTRY_BYTES_MIN);
        for entry in entries {
            assert!(!entry.to_string().is_empty());
        }
    }
}
