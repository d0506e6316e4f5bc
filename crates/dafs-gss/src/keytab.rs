//! The entries of a keytab without their keys, for those who look for a mistake in it. Only the library uses the keys.
//!
//! The format is that of MIT krb5 ("The Kerberos Version 5 keytab file format"), version 2. After two bytes of
//! mark and version come the entries. Each has its length in front, as a signed number; a negative one is a hole
//! that a removed entry has left. All numbers are big-endian.
//!
//! Invariants
//! * Every length is checked against the bytes that there are, and nothing is kept for a length alone.
//! * No key leaves this module, and the bytes of the file are overwritten after use. They lie in one place.

use crate::enctype::Enctype;
use std::fmt::{self, Write as _};
use std::io::{self, Read as _};
use std::path::Path;
use zeroize::Zeroizing;

/// The longest keytab that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Room behind the content of a file, in which the standard library finds its end.
const SPARE_BYTES: usize = 64;

const MARK: [u8; 2] = [5, 2];

/// An entry: one key of one principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The principal, such as `nfs/server.example.org@EXAMPLE.ORG`.
    pub principal: String,
    /// The encryption type (RFC 3961 8).
    pub enctype: u16,
    /// The version of the key (kvno).
    pub version: u32,
}

impl Entry {
    /// True if `dafs` takes keys of this type for the messages of a context.
    pub fn is_usable(&self) -> bool {
        Enctype::from_number(u32::from(self.enctype)).is_some()
    }
}

/// The bytes are no keytab of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no keytab, or it is damaged")]
pub struct NoKeytab;

/// Reads the entries of a keytab.
///
/// # Errors
/// Those of the file. `InvalidData` if it is no keytab of version 2.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let file = std::fs::File::open(path)?;
    let file_bytes = file.metadata()?.len().min(FILE_BYTES_MAX);
    // A vector that grows would leave copies of keys in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(file_bytes as usize + SPARE_BYTES));
    file.take(file_bytes).read_to_end(&mut bytes)?;
    parse(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns the entries in the content of a keytab.
///
/// # Errors
/// [`NoKeytab`].
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, NoKeytab> {
    let mut rest = Bytes(bytes.strip_prefix(&MARK).ok_or(NoKeytab)?);
    let mut entries = Vec::new();
    while !rest.0.is_empty() {
        let length = i32::from_be_bytes(rest.array()?);
        let content = rest.take(length.unsigned_abs() as usize)?;
        if length > 0 {
            entries.push(entry(Bytes(content))?);
        }
    }
    Ok(entries)
}

fn entry(mut bytes: Bytes<'_>) -> Result<Entry, NoKeytab> {
    let count = u16::from_be_bytes(bytes.array()?);
    let realm = bytes.counted()?;
    let mut principal = Vec::new();
    for number in 0..count {
        if number > 0 {
            principal.push(b'/');
        }
        principal.extend_from_slice(bytes.counted()?);
    }
    principal.push(b'@');
    principal.extend_from_slice(realm);
    // The type of the name, and the time of the entry.
    bytes.take(8)?;
    let [short_version] = bytes.array()?;
    let enctype = u16::from_be_bytes(bytes.array()?);
    bytes.counted()?;
    // Present if the entry goes on; zero means that it is not.
    let long_version = bytes.array().map_or(0, u32::from_be_bytes);
    let version = if long_version == 0 { short_version.into() } else { long_version };
    let principal = String::from_utf8_lossy(&principal).into_owned();
    Ok(Entry { principal, enctype, version })
}

/// Bytes that are taken from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], NoKeytab> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(NoKeytab)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NoKeytab> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(NoKeytab)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn counted(&mut self) -> Result<&'a [u8], NoKeytab> {
        let count = u16::from_be_bytes(self.array()?);
        self.take(count.into())
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.principal.chars() {
            if char.is_control() {
                write!(f, "{}", char.escape_default())?;
            } else {
                f.write_char(char)?;
            }
        }
        write!(f, " (kvno {}, enctype {})", self.version, self.enctype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    /// An entry as kadmin writes it; without the long version as old programs do.
    fn written(components: &[&str], version: u32, enctype: u16, has_long_version: bool) -> Vec<u8> {
        let mut bytes = (components.len() as u16).to_be_bytes().to_vec();
        bytes.extend(counted(b"A.ORG"));
        for component in components {
            bytes.extend(counted(component.as_bytes()));
        }
        bytes.extend([0; 8]);
        bytes.push(version as u8);
        bytes.extend(enctype.to_be_bytes());
        bytes.extend(counted(b"a key of some bytes"));
        if has_long_version {
            bytes.extend(version.to_be_bytes());
        }
        [&(bytes.len() as i32).to_be_bytes()[..], &bytes].concat()
    }

    #[test]
    fn entries_are_told_without_holes() {
        let mut file = MARK.to_vec();
        file.extend(written(&["nfs", "server.a.org"], 300, 18, true));
        let first_end = file.len();
        file.extend((-3_i32).to_be_bytes());
        file.extend(*b"old");
        let hole_end = file.len();
        file.extend(written(&["anna"], 7, 23, false));
        let entries = parse(&file).unwrap();
        let told: Vec<String> = entries.iter().map(Entry::to_string).collect();
        assert_eq!(
            told,
            ["nfs/server.a.org@A.ORG (kvno 300, enctype 18)", "anna@A.ORG (kvno 7, enctype 23)"]
        );
        assert_eq!(entries.iter().map(Entry::is_usable).collect::<Vec<_>>(), [true, false]);
        assert_eq!(parse(&MARK), Ok(Vec::new()));
        for bytes in [&b""[..], b"\x05", b"\x05\x01", b"hello"] {
            assert_eq!(parse(bytes), Err(NoKeytab), "{bytes:?}");
        }
        for end in 3..file.len() {
            // A file that ends between two entries is whole.
            let is_whole = [first_end, hole_end].contains(&end);
            assert_eq!(parse(&file[..end]).is_ok(), is_whole, "{end}");
        }
    }

    #[test]
    fn no_name_moves_the_cursor_of_a_terminal() {
        let file = [&MARK[..], &written(&["a\u{1b}[2J\n\u{9b}\u{e9}"], 1, 18, true)].concat();
        let entries = parse(&file).unwrap();
        let told = entries[0].to_string();
        assert_eq!(told, "a\\u{1b}[2J\\n\\u{9b}\u{e9}@A.ORG (kvno 1, enctype 18)");
    }

    #[test]
    fn a_file_is_read_whole() {
        let path = std::env::temp_dir().join(format!("dafs-keytab-{}", std::process::id()));
        let entry = written(&["nfs", "server.a.org"], 3, 18, true);
        for count in [0, 1, 1000] {
            std::fs::write(&path, [&MARK[..], &entry.repeat(count)].concat()).unwrap();
            assert_eq!(read(&path).unwrap().len(), count);
        }
        std::fs::remove_file(&path).unwrap();
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_bad(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&[&MARK[..], &tail].concat());
        }
    }
}
