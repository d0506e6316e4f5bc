//! The check of a password against its Argon2 hash.
//!
//! Invariants
//! * A check uses a memory of some 19 MiB. It is kept for the next check, because it costs a quarter
//!   of a check to map it anew. It is empty meanwhile: from its content a password could be found
//!   with less work than from the hash.
//! * A memory that was not needed for a while goes back to the system.

use crate::limits::{CHECK_MEMORY_IDLE, CHECK_MEMORY_KIB_MAX};
use argon2::password_hash::phc::{Output, PasswordHash, Salt};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use dafs_dat::Instant;
use dafs_mem::Mutex;

/// The Argon2 hash of a password, with all that a check needs.
#[derive(Clone, Debug)]
pub(crate) struct HashedPassword {
    argon2: Argon2<'static>,
    salt: Salt,
    output: Output,
}

impl HashedPassword {
    /// Parses a hash in PHC form.
    ///
    /// # Errors
    /// The reason why no password can be checked against it, with the remedy.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let hash = PasswordHash::new(text)
            .map_err(|_| "the hash is not in PHC form; make it with `dafs passwd`")?;
        let this = Self::from_phc(&hash)
            .ok_or("the hash is not a whole one of Argon2; make it with `dafs passwd`")?;
        if this.argon2.params().m_cost() > CHECK_MEMORY_KIB_MAX {
            return Err("a check of the hash takes more than 1 GiB; make it with `dafs passwd`");
        }
        Ok(this)
    }

    fn from_phc(hash: &PasswordHash) -> Option<Self> {
        let algorithm = Algorithm::try_from(hash.algorithm.as_str()).ok()?;
        let version = hash.version.map_or(Ok(Version::default()), Version::try_from).ok()?;
        let argon2 = Argon2::new(algorithm, version, Params::try_from(hash).ok()?);
        Some(Self { argon2, salt: hash.salt?, output: hash.hash? })
    }

    fn is_of(&self, password: &[u8], memory: &mut [Block]) -> Option<bool> {
        let mut output = [0; Output::MAX_LENGTH];
        let output = output.get_mut(..self.output.len())?;
        self.argon2.hash_password_into_with_memory(password, &self.salt, output, memory).ok()?;
        Some(Output::new(output).ok()? == self.output)
    }
}

/// Checks passwords.
#[derive(Debug, Default)]
pub(crate) struct Passwords(Mutex<Kept>);

/// The memory between two checks.
#[derive(Default)]
struct Kept {
    memory: Vec<Block>,
    /// A check has used it since `since`.
    is_used: bool,
    since: Option<Instant>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} blocks", self.memory.len())
    }
}

impl Passwords {
    /// True if a password has this hash. False, too, where memory for the check is missing.
    pub(crate) fn is_right(&self, password: &[u8], hash: &HashedPassword) -> bool {
        let Some(mut memory) = self.take(hash.argon2.params().block_count()) else {
            tracing::warn!("a password was refused: there is no memory for the check");
            return false;
        };
        let right = hash.is_of(password, &mut memory);
        self.give_back(memory);
        right == Some(true)
    }

    fn take(&self, blocks: usize) -> Option<Vec<Block>> {
        let mut memory = std::mem::take(&mut self.0.lock().memory);
        if memory.len() != blocks {
            memory = Vec::new();
            memory.try_reserve_exact(blocks).ok()?;
            memory.resize(blocks, Block::new());
        }
        Some(memory)
    }

    fn give_back(&self, mut memory: Vec<Block>) {
        memory.fill(Block::new());
        let mut kept = self.0.lock();
        (kept.memory, kept.is_used) = (memory, true);
    }

    /// Frees memory that was not needed lately. Called about once a second.
    pub(crate) fn trim(&self, now: Instant) {
        let mut kept = self.0.lock();
        if kept.since.is_none_or(|since| now.since(since) >= CHECK_MEMORY_IDLE) {
            kept.since = Some(now);
            if !std::mem::take(&mut kept.is_used) {
                let memory = std::mem::take(&mut kept.memory);
                drop(kept);
                drop(memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use argon2::password_hash::PasswordHasher;
    use std::time::Duration;

    #[test]
    fn a_check_uses_the_parameters_of_the_hash() {
        let passwords = Passwords::default();
        let cheap = Argon2::new(
            Algorithm::Argon2id,
            Version::V0x13,
            Params::new(64, 1, 2, Some(24)).unwrap(),
        );
        for argon2 in [Argon2::default(), cheap] {
            let hash = argon2.hash_password(b"right").unwrap().to_string();
            let hash = HashedPassword::parse(&hash).unwrap();
            assert!(passwords.is_right(b"right", &hash));
            assert!(!passwords.is_right(b"wrong", &hash));
            let blocks = passwords.0.lock().memory.clone();
            assert_eq!(blocks.len(), hash.argon2.params().block_count());
            assert!(blocks.iter().all(|block| block.as_ref().iter().all(|&word| word == 0)));
        }
    }

    #[test]
    fn hashes_that_cannot_be_checked_are_refused() {
        let of = |text: &str| HashedPassword::parse(text).map(drop).unwrap_err();
        let tail = "c2FsdHNhbHQ$aGFzaGhhc2hoYXNoaGFzaA";
        HashedPassword::parse(&format!("$argon2id$v=19$m=64,t=1,p=2${tail}")).unwrap();
        for (hash, reason) in [
            ("argon2id".to_owned(), "is not in PHC form"),
            ("$argon2id$v=19$m=64,t=1,p=2".to_owned(), "not a whole one"),
            ("$argon2id$v=19$m=64,t=1,p=2$c2FsdHNhbHQ".to_owned(), "not a whole one"),
            (format!("$argon2id$v=7$m=64,t=1,p=2${tail}"), "not a whole one"),
            (format!("$argon2id$v=19$m=1,t=1,p=2${tail}"), "not a whole one"),
            (format!("$pbkdf2$m=64${tail}"), "not a whole one"),
            (format!("$argon2id$v=19$m=1048577,t=1,p=2${tail}"), "more than 1 GiB"),
        ] {
            assert!(of(&hash).contains(reason), "{hash}: {}", of(&hash));
        }
    }

    #[test]
    fn the_memory_is_kept_while_it_is_needed() {
        let passwords = Passwords::default();
        let blocks = |passwords: &Passwords| passwords.0.lock().memory.len();
        let at = |seconds| Instant(0) + Duration::from_secs(seconds);
        passwords.give_back(passwords.take(8).unwrap());
        passwords.trim(at(1));
        assert_eq!(blocks(&passwords), 8, "it was used");
        passwords.give_back(passwords.take(8).unwrap());
        passwords.trim(at(2));
        passwords.trim(at(100));
        assert_eq!(blocks(&passwords), 8, "it was used again");
        passwords.trim(at(105));
        assert_eq!(blocks(&passwords), 8, "not yet");
        passwords.trim(at(200));
        assert_eq!(blocks(&passwords), 0);
    }
}
