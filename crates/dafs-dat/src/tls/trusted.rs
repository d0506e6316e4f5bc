//! A server whose certificate must stay trusted while a client uses its connection.

use super::host::now_seconds;
use dafs_mem::Mutex;
use dafs_tls::{Distrust, Facts, Peer, ReloadingClient};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A server whose certificate must stay trusted.
#[derive(Debug)]
pub struct Trusted {
    files: Arc<ReloadingClient>,
    /// The name that its certificate must have.
    name: String,
    peer: Peer,
    /// The second, since 1970, of the last look at the files and the time.
    looked_seconds: AtomicU64,
    /// The generation of the files that has judged the server last, and the second after which it
    /// is judged again.
    judged: Mutex<(u64, u64)>,
}

impl Trusted {
    /// None for a server without a certificate, which no handshake of a client admits.
    pub fn new(files: &Arc<ReloadingClient>, name: &str, facts: Facts) -> Option<Self> {
        let (peer, now_seconds) = (facts.peer?, now_seconds());
        let judged = Mutex::new((facts.generation, peer.ends_seconds(now_seconds)));
        let (files, name) = (files.clone(), name.to_owned());
        Some(Self { files, name, peer, looked_seconds: AtomicU64::new(now_seconds), judged })
    }

    /// Judges the server again if its certificate has ended or the files have changed. Looks once a
    /// second at most. A caller does not wait while another
    /// one looks by the same connection.
    ///
    /// # Errors
    /// The reason why its certificate is not trusted any more.
    pub fn check(&self) -> Result<(), Distrust> {
        let now_seconds = now_seconds();
        if self.looked_seconds.load(Ordering::Relaxed) == now_seconds {
            return Ok(());
        }
        let Some(mut judged) = self.judged.try_lock() else { return Ok(()) };
        if self.looked_seconds.load(Ordering::Relaxed) == now_seconds {
            return Ok(());
        }
        let (generation, ends_seconds) = *judged;
        if let Err(error) = self.files.follow(now_seconds) {
            tracing::warn!(%error, "changed files of TLS are not used");
        }
        let side = self.files.current();
        if generation != side.generation() || now_seconds > ends_seconds {
            side.still_trusts(&self.peer, &self.name, now_seconds)?;
            *judged = (side.generation(), self.peer.ends_seconds(now_seconds));
        }
        self.looked_seconds.store(now_seconds, Ordering::Relaxed);
        Ok(())
    }
}
