//! The identity with which a thread uses files.
//!
//! Switching costs a few system calls, so a thread keeps its last identity after a guard is gone,
//! until another one is asked for. A thread that touches files outside a store between operations
//! must call [`as_server`] first.
//!
//! Invariants
//! * A guard means that the thread has that identity now. Guards nest; the end of an inner one
//!   brings the outer one's identity back.
//! * A switch that does not succeed completely fails the operation.
//! * Threads that serve callers give up CAP_SYS_RESOURCE, because with it disk quotas do not hold.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

/// The ids by which the kernel decides what a thread may do with files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileIdentity {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

/// The identity of a thread, as far as it is known.
struct ThreadIdentity {
    /// The identity that the kernel holds for this thread; `None` before the first switch, when
    /// the thread may have inherited anything from the thread that made it.
    current: Option<FileIdentity>,
    /// The identity that the innermost guard asked for.
    held: Option<FileIdentity>,
}

thread_local! {
    static THREAD: RefCell<ThreadIdentity> =
        const { RefCell::new(ThreadIdentity { current: None, held: None }) };
}

/// Proof that the thread has the identity that it was made from.
#[derive(Debug)]
#[must_use]
pub struct FileIdentityGuard {
    outer: Option<FileIdentity>,
    /// The proof is about one thread.
    not_send: PhantomData<*const ()>,
}

/// Gives the thread another identity, until the guard is gone or another one is asked for. Needs
/// CAP_SETUID and CAP_SETGID.
///
/// # Errors
/// `EACCES` when the kernel refuses.
pub fn act_as(identity: FileIdentity) -> io::Result<FileIdentityGuard> {
    THREAD.with_borrow_mut(|thread| {
        thread.become_identity(&identity)?;
        let outer = thread.held.replace(identity);
        Ok(FileIdentityGuard { outer, not_send: PhantomData })
    })
}

/// Gives the thread the server's own identity back, if a store left another one on it.
///
/// # Errors
/// `EACCES` when the kernel refuses, when the thread is about to end, or when an operation of a store
/// is under way on this thread and still needs its caller's identity; the thread must not touch files
/// then.
pub fn as_server() -> io::Result<()> {
    // Destructors of a thread that ends may come here when its identity is no longer known.
    THREAD.try_with(|thread| thread.borrow_mut().become_server()).unwrap_or_else(|_| Err(refused()))
}

impl Drop for FileIdentityGuard {
    fn drop(&mut self) {
        THREAD.with_borrow_mut(|thread| {
            let Some(outer) = self.outer.take() else {
                thread.held = None;
                return;
            };
            if thread.become_identity(&outer).is_err() {
                // Going on would run the rest of the outer operation with foreign rights.
                tracing::error!(uid = outer.uid, "cannot go back to a caller's identity");
                std::process::abort();
            }
            thread.held = Some(outer);
        });
    }
}

impl ThreadIdentity {
    fn become_server(&mut self) -> io::Result<()> {
        match &self.current {
            _ if self.held.is_some() => Err(refused()),
            Some(now) if now.uid != 0 || now.gid != 0 || !now.groups.is_empty() => {
                self.become_identity(&FileIdentity { uid: 0, gid: 0, groups: Arc::new([]) })
            }
            _ => Ok(()),
        }
    }

    fn become_identity(&mut self, wanted: &FileIdentity) -> io::Result<()> {
        if self.current.as_ref() == Some(wanted) {
            return Ok(());
        }
        // Unknown until all parts are in place.
        let old = self.current.take();
        if old.is_none() {
            give_up_resource_override();
        }
        let same = |part: fn(&FileIdentity, &FileIdentity) -> bool| {
            old.as_ref().is_some_and(|old| part(old, wanted))
        };
        let taken = (same(|a, b| a.groups == b.groups) || set_thread_groups(&wanted.groups))
            && (same(|a, b| a.gid == b.gid) || set_fs_gid(wanted.gid))
            && (same(|a, b| a.uid == b.uid) || set_fs_uid(wanted.uid));
        if !taken {
            return Err(refused());
        }
        self.current = Some(wanted.clone());
        Ok(())
    }
}

fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::EACCES)
}

fn give_up_resource_override() {
    let without = capabilities(None).and_then(|mut sets| {
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        set_capabilities(None, sets)
    });
    if let Err(error) = without {
        tracing::warn!(%error, "quotas may not hold: CAP_SYS_RESOURCE stays");
    }
}

/// Sets the thread's file-system user id and tells whether the kernel took it.
fn set_fs_uid(uid: u32) -> bool {
    // SAFETY: both calls take plain numbers and change the calling thread only. The value -1 is
    // never valid, so the second call only asks.
    unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(u32::MAX).cast_unsigned() == uid
    }
}

/// Sets the thread's file-system group id and tells whether the kernel took it.
fn set_fs_gid(gid: u32) -> bool {
    // SAFETY: as `set_fs_uid`.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(u32::MAX).cast_unsigned() == gid
    }
}

/// Sets the supplementary groups of the calling thread alone; the C library would change all.
fn set_thread_groups(groups: &[u32]) -> bool {
    // SAFETY: the pointer and the count describe a valid slice of group ids.
    unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0 }
}
