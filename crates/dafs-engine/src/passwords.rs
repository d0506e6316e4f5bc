//! The check of a password against its Argon2 hash.
//!
//! Invariants
//! * A check uses a memory of some 19 MiB. It is kept for the next check, because it costs a quarter
//!   of a check to map it anew; one thread checks all passwords.
//! * A memory that was not needed for a while goes back to the system.

use crate::limits::CHECK_MEMORY_IDLE;
use argon2::password_hash::phc::{Output, PasswordHash};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use dafs_dat::Instant;
use dafs_mem::Mutex;

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
    /// True if a password has this hash. The hash has the parameters.
    pub(crate) fn is_right(&self, password: &[u8], hash: &PasswordHash) -> bool {
        self.compute(password, hash).is_some_and(|output| Some(output) == hash.hash)
    }

    fn compute(&self, password: &[u8], hash: &PasswordHash) -> Option<Output> {
        let algorithm = Algorithm::try_from(hash.algorithm.as_str()).ok()?;
        let version = hash.version.map_or(Ok(Version::default()), Version::try_from).ok()?;
        let params = Params::try_from(hash).ok()?;
        let (salt, len) = (hash.salt.as_ref()?, hash.hash.as_ref()?.len());
        let blocks = params.block_count();
        let mut memory = self.take(blocks);
        let mut output = [0; Output::MAX_LENGTH];
        let output = output.get_mut(..len)?;
        let argon2 = Argon2::new(algorithm, version, params);
        let done =
            argon2.hash_password_into_with_memory(password, salt, output, &mut memory[..blocks]);
        self.give_back(memory);
        done.ok()?;
        Output::new(output).ok()
    }

    fn take(&self, blocks: usize) -> Vec<Block> {
        let memory = std::mem::take(&mut self.0.lock().memory);
        if memory.len() < blocks { vec![Block::new(); blocks] } else { memory }
    }

    fn give_back(&self, memory: Vec<Block>) {
        let mut kept = self.0.lock();
        (kept.memory, kept.is_used) = (memory, true);
    }

    /// Frees memory that was not needed lately. Called about once a second.
    pub(crate) fn trim(&self, now: Instant) {
        let mut kept = self.0.lock();
        if kept.since.is_none_or(|since| now.since(since) >= CHECK_MEMORY_IDLE) {
            if !std::mem::take(&mut kept.is_used) {
                kept.memory = Vec::new();
            }
            kept.since = Some(now);
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
            let hash = argon2.hash_password(b"right").unwrap();
            assert!(passwords.is_right(b"right", &hash));
            assert!(!passwords.is_right(b"wrong", &hash));
        }
        for hash in ["$argon2id$v=19$m=64,t=1,p=2", "$pbkdf2$m=64$c2FsdHNhbHQ$aGFzaGhhc2g"] {
            if let Ok(hash) = PasswordHash::new(hash) {
                assert!(!passwords.is_right(b"right", &hash), "{hash}");
            }
        }
    }

    #[test]
    fn the_memory_is_kept_while_it_is_needed() {
        let passwords = Passwords::default();
        let blocks = |passwords: &Passwords| passwords.0.lock().memory.len();
        let at = |seconds| Instant(0) + Duration::from_secs(seconds);
        passwords.give_back(passwords.take(8));
        passwords.trim(at(1));
        assert_eq!(blocks(&passwords), 8, "it was used");
        passwords.give_back(passwords.take(4));
        passwords.trim(at(2));
        passwords.trim(at(100));
        assert_eq!(blocks(&passwords), 8, "it was used again");
        passwords.trim(at(105));
        assert_eq!(blocks(&passwords), 8, "not yet");
        passwords.trim(at(200));
        assert_eq!(blocks(&passwords), 0);
    }
}
