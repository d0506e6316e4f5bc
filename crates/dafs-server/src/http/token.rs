//! The token of administrators on other machines.
//!
//! Invariants
//! * The comparison takes the same time for every wrong token of a length. It compares MACs under a random
//!   key, so no part of a token is found by its time.
//! * Only its owner can read the file; another one is refused. No answer and no log line has the token.

use dafs_store::own;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file in the state directory.
pub(crate) const TOKEN_FILE: &str = "admin-token";

/// Random bytes of a token that is made here. The file has two hexadecimal digits for each.
const TOKEN_BYTES: usize = 32;

/// Bytes of the file. An administrator may have written a longer token.
const FILE_BYTES_MAX: usize = 1024;

/// Characters of a token, at least.
const TOKEN_CHARACTERS_MIN: usize = 32;

/// A token, as what is needed to recognise it.
pub(crate) struct Token {
    key: [u8; 16],
    mac: [u8; 16],
}

impl Token {
    /// Reads the token in a state directory. Makes it if there is none.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let path = state.join(TOKEN_FILE);
        // The state directory is the server's own, so no other user changes the mode meanwhile.
        if fs::symlink_metadata(&path).is_ok_and(|found| found.mode() & 0o077 != 0) {
            let text = "other users can use it; run chmod 600 on it, or remove it, and the next start makes one";
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        match own::read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut bytes = [0; TOKEN_BYTES];
                getrandom::fill(&mut bytes).map_err(io::Error::other)?;
                let mut text = String::new();
                for byte in bytes {
                    write!(text, "{byte:02x}").map_err(io::Error::other)?;
                }
                text.push('\n');
                own::replace(&path, &state.join("admin-token.new"), text.as_bytes())?;
                Self::of(text.trim().as_bytes())
            }
            read => Self::of(read?.trim_ascii()),
        }
    }

    /// Takes the text of a token.
    ///
    /// # Errors
    /// It is too short, or has blanks.
    pub(super) fn of(text: &[u8]) -> io::Result<Self> {
        if text.len() < TOKEN_CHARACTERS_MIN || !text.iter().all(u8::is_ascii_graphic) {
            let text =
                "it has no token of 32 characters or more; remove it, and the next start makes one";
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Self { key, mac: own::mac(&key, &[text]) })
    }

    /// True if this is the token.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        let given = own::mac(&self.key, &[given]);
        let differences = self.mac.iter().zip(given).map(|(one, other)| one ^ other);
        differences.fold(0, |all, bits| all | bits) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TOKEN_FILE);
        Token::open(dir.path()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let token = Token::open(dir.path()).unwrap();
        assert!(token.is(text.trim().as_bytes()));
        for wrong in ["", text.as_str(), &text[..63], text.trim().repeat(2).as_str()] {
            assert!(!token.is(wrong.as_bytes()), "{wrong:?}");
        }
        fs::write(&path, "short\n").unwrap();
        assert!(Token::open(dir.path()).is_err());
        fs::write(&path, &text).unwrap();
        Token::open(dir.path()).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = Token::open(dir.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
