//! The life page of a server: memory that tells its peers on the host if the server still lives.
//!
//! A peer that has mapped memory of the server reads it without a message, so no broken connection
//! tells it of the server's death. The kernel does: it marks a word when the thread that owns it dies
//! (robust futexes, `set_robust_list(2)`). It does so before it closes the files of the process,
//! among them the listening sockets and the locks that keep another server out.
//!
//! Invariants
//! * The word is the id of a thread while the server lives. Otherwise it is 0, or has the bit
//!   `FUTEX_OWNER_DIED`.
//! * The thread uses no robust mutex of the C library, whose list it replaces.

use super::arena::exposed_buffer;
use dafs_mem::Buffer;
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// The length of the page in bytes.
const LIFE_BYTES: usize = 4096;

/// The bit that the kernel sets in the word of a dead thread.
const OWNER_DIED: u32 = 0x4000_0000;

/// True if the word of a life page says that the server lives.
pub fn is_alive(word: u32) -> bool {
    word != 0 && word & OWNER_DIED == 0
}

/// The life of a server. It ends when this is dropped, or the process ends.
pub struct Life {
    page: Arc<Buffer>,
    /// Dropped to stop the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An entry of a robust list, as the kernel defines it (`struct robust_list`).
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// The head of a robust list (`struct robust_list_head`).
#[repr(C)]
struct Head {
    list: Entry,
    /// The distance from an entry to its word, in bytes.
    word_offset: c_long,
    pending: *const Entry,
}

impl Life {
    /// Begins the life of a server.
    ///
    /// # Errors
    /// The kernel has no memory, no file descriptor or no thread left.
    pub fn start() -> io::Result<Self> {
        let page = Arc::new(exposed_buffer(LIFE_BYTES)?);
        let (running, ended) = channel::<()>();
        let (started, is_started) = channel();
        let own = page.clone();
        let run = move || {
            let Some(word) = own.view().word32(0) else { return };
            let live = || {
                let _ = started.send(());
                // Nothing is ever sent.
                let _ = ended.recv();
            };
            own_word(word, live);
        };
        let thread = std::thread::Builder::new().name("dafs-life".to_owned()).spawn(run)?;
        // The thread has sent this, or has failed: then the word says so.
        let _ = is_started.recv();
        Ok(Self { page, running: Some(running), thread: Some(thread) })
    }

    /// Marks the word as the kernel does when the owner dies. Peers then believe in no life any more.
    pub fn end(&self) {
        if let Some(word) = self.page.view().word32(0) {
            word.store(OWNER_DIED, Ordering::Release);
        }
    }

    /// The page. Its word is at 0.
    pub fn page(&self) -> &Arc<Buffer> {
        &self.page
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A failed thread has reported its panic.
            let _ = thread.join();
        }
    }
}

/// Runs `live` while this thread owns the word.
fn own_word(word: &AtomicU32, live: impl FnOnce()) {
    let mut entry = Entry { next: ptr::null() };
    let distance = word.as_ptr().addr().wrapping_sub((&raw const entry).addr());
    let mut head = Head {
        list: Entry { next: &raw const entry },
        word_offset: distance as c_long,
        pending: ptr::null(),
    };
    // The list is a circle.
    entry.next = &raw const head.list;
    // SAFETY: the call has no argument and no effect.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // SAFETY: `owned` replaces the list before `head` and `entry` go, also when `live` panics.
    if !unsafe { set_robust_list(&raw mut head) } {
        return;
    }
    let owned = Owned(word);
    word.store(thread, Ordering::Release);
    live();
    drop(owned);
    // The kernel reads both through the head.
    std::hint::black_box((&entry, &head));
}

/// The word, while the kernel knows that this thread owns it.
struct Owned<'a>(&'a AtomicU32);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        // SAFETY: no list needs to stay.
        let is_unset = unsafe { set_robust_list(ptr::null_mut()) };
        debug_assert!(is_unset);
    }
}

/// Sets the list of robust futexes of this thread, or none. Returns true if it is set.
///
/// # Safety
/// The head and its entries stay as they are until another list, or none, replaces this one.
unsafe fn set_robust_list(head: *mut Head) -> bool {
    // SAFETY: the kernel keeps the address, and reads the list when this thread dies, as long as the
    // caller promises that it is there. It writes only to words that hold the number of this thread.
    let result: c_int = unsafe {
        libc::syscall(libc::SYS_set_robust_list, head.cast::<c_void>(), size_of::<Head>()) as c_int
    };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(page: &Buffer) -> u32 {
        page.view().word32(0).unwrap().load(Ordering::Acquire)
    }

    #[test]
    fn a_life_ends_with_its_owner() {
        let life = Life::start().unwrap();
        let page = life.page().clone();
        assert!(is_alive(word(&page)));
        drop(life);
        assert!(!is_alive(word(&page)));
        let life = Life::start().unwrap();
        life.end();
        assert!(!is_alive(word(life.page())));
    }

    #[test]
    fn the_kernel_notes_the_death_of_the_owner() {
        let page = exposed_buffer(LIFE_BYTES).unwrap();
        // SAFETY: the child makes only calls of the kernel, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            own_word(page.view().word32(0).unwrap(), || {
                // SAFETY: ends this process, as a crash does.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
            // SAFETY: ends this process, which must not go on as a second test process.
            unsafe { libc::_exit(1) };
        }
        // SAFETY: waits for that child; no status is wanted.
        unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
        let word = word(&page);
        assert!(!is_alive(word), "{word:x}");
        assert_ne!(word & OWNER_DIED, 0, "{word:x}");
    }
}
