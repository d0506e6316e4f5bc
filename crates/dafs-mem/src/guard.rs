//! A copy that survives missing memory: an application may unmap a buffer, make it read-only or cut
//! the file behind it while an operation uses it, and no check beforehand can exclude that race.
//!
//! The copy is one machine function. A handler of SIGSEGV and SIGBUS ends that function when a
//! fault happens in it. It passes all other faults on to the handler that was installed before.
//!
//! Invariants
//! * A handler that the application installs later is left alone. If ours is no longer in force,
//!   the kernel copies (`process_vm_readv` on this process), which is slower and returns `EFAULT`
//!   by itself. A thread that has blocked the signals unblocks them during a copy, unless one is
//!   pending for it.
//! * A copy waits for no other thread. In a fork's child that finds its parent's installation half
//!   done, and without [`prepare_copies`], the kernel copies.
//! * To check the handlers costs system calls. So they are checked for long copies, and for each
//!   [`COPIES_PER_LOOK`]th short one of a thread.
//! * The handler before sees its faults as if ours were not there: with the mask and flags that it
//!   has asked for, and if it was the default, from the kernel itself.
//! * The handler accesses only its arguments, and data that was written before it was installed.

use std::cell::Cell;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The number of short copies of a thread between two checks of the handlers.
const COPIES_PER_LOOK: u32 = 16;

/// A copy of at least this length justifies a check of its own.
const LOOK_BYTES_MIN: usize = 1 << 16;

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Copies `len` bytes upwards. Returns false if memory was missing, and then any part of them may
/// be copied.
///
/// `ours` says which of the two memories certainly is mapped.
///
/// # Safety
/// The caller may write any memory that is mapped at `target`, and read any at `source`.
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, len: usize, ours: Ours) -> bool {
    if len == 0 {
        return true;
    }
    // SAFETY: as the caller promises. The handler covers a fault inside.
    let guarded = || unsafe { copy_guarded(target, source, len) == 0 };
    let done = match guard(len) {
        Guard::Stands => return guarded(),
        Guard::Blocked => unblocked(guarded),
        Guard::Missing => None,
    };
    // SAFETY: as the caller promises.
    let done = done.or_else(|| unsafe { copy_by_kernel(target, source, len, ours) });
    done.unwrap_or_else(guarded)
}

/// The side of a copy that is the library's own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ours {
    Source,
    Target,
}

/// Copies upwards and returns the number of bytes left: none, unless the handler has ended it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn copy_guarded(target: *mut u8, source: *const u8, len: usize) -> usize {
    // Not by `rep movsb`, which takes a hundred times as long where the two addresses are badly
    // aligned to each other.
    std::arch::naked_asm!(
        "mov rcx, rdx",
        "cmp rcx, 64",
        "jb 3f",
        "2: movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rcx, 64",
        "cmp rcx, 64",
        "jae 2b",
        "3: cmp rcx, 8",
        "jb 5f",
        "4: mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rcx, 8",
        "cmp rcx, 8",
        "jae 4b",
        "5: test rcx, rcx",
        "jz 7f",
        "6: mov al, [rsi]",
        "mov [rdi], al",
        "inc rsi",
        "inc rdi",
        "dec rcx",
        "jnz 6b",
        "7: mov rax, rcx",
        "ret",
    )
}

/// The length of the code of [`copy_guarded`], up to the end of all instructions that access
/// memory.
#[cfg(target_arch = "x86_64")]
const GUARDED_BYTES: usize = 0x6b;

/// The handler continues here: returns the number of bytes left.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn give_up() {
    std::arch::naked_asm!("mov rax, rcx", "ret")
}

/// CI runs on x86-64 alone. The tests of this crate have passed with these instructions under
/// `qemu-aarch64`, except those that need `process_vm_readv`, which that emulator lacks:
/// `cargo test -p dafs-mem --target aarch64-unknown-linux-gnu`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn copy_guarded(target: *mut u8, source: *const u8, len: usize) -> usize {
    std::arch::naked_asm!(
        "cmp x2, #32",
        "b.lo 2f",
        "1: ldp x3, x4, [x1]",
        "ldp x5, x6, [x1, #16]",
        "add x1, x1, #32",
        "stp x3, x4, [x0]",
        "stp x5, x6, [x0, #16]",
        "add x0, x0, #32",
        "sub x2, x2, #32",
        "cmp x2, #32",
        "b.hs 1b",
        "2: cbz x2, 4f",
        "3: ldrb w3, [x1], #1",
        "strb w3, [x0], #1",
        "subs x2, x2, #1",
        "b.ne 3b",
        "4: mov x0, x2",
        "ret",
    )
}

#[cfg(target_arch = "aarch64")]
const GUARDED_BYTES: usize = 16 * 4;

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn give_up() {
    std::arch::naked_asm!("mov x0, x2", "ret")
}

/// On other machines the kernel copies. Where that is forbidden, copies are not guarded.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn copy_guarded(target: *mut u8, source: *const u8, len: usize) -> usize {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy(source, target, len) };
    0
}

/// The instruction that a signal has interrupted.
///
/// # Safety
/// `context` is the argument of a handler.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn instruction<'a>(context: *mut libc::c_void) -> &'a mut u64 {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller promises; the register is as wide as an u64.
    unsafe {
        &mut *(&raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]).cast::<u64>()
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        &mut *(&raw mut (*context).uc_mcontext.pc).cast::<u64>()
    }
}

/// True if the signal reports a fault of the thread itself. A signal that a process has sent has
/// another meaning, and so has the kernel's report of a failed page that no thread has accessed.
///
/// # Safety
/// The arguments are those of a handler.
unsafe fn is_fault(signal: libc::c_int, info: *const libc::siginfo_t) -> bool {
    // SAFETY: as the caller promises.
    let code = unsafe { (*info).si_code };
    code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO)
}

/// Ends a copy of this module. Returns false for any other fault.
///
/// # Safety
/// The arguments are those of a handler.
unsafe fn end_copy(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let start = copy_guarded as *const () as u64;
        // SAFETY: as the caller promises.
        let (is_fault, at) = unsafe { (is_fault(signal, info), instruction(context)) };
        if is_fault && at.wrapping_sub(start) < GUARDED_BYTES as u64 {
            *at = give_up as *const () as u64;
            return true;
        }
    }
    let _ = (signal, info, context);
    false
}

type Handler = extern "C-unwind" fn(libc::c_int);
type HandlerWithInfo = extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Earlier handlers may unwind, as in languages that turn faults into exceptions.
extern "C-unwind" fn handle(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel, or a handler that calls this one, gave the arguments.
    if unsafe { end_copy(signal, info, context) } {
        return;
    }
    let index = usize::from(signal != SIGNALS[0]);
    // SAFETY: written before this handler was installed, and not changed since.
    let before = unsafe { &*(*BEFORE.0[index].get()).as_ptr() };
    // SAFETY: as above.
    let is_sent = !unsafe { is_fault(signal, info) };
    // Ours stays after the single call of the earlier one, because other threads copy meanwhile.
    let once = before.sa_flags & libc::SA_RESETHAND != 0;
    let is_over = once && SPENT[index].swap(true, Ordering::Relaxed);
    match if is_over { libc::SIG_DFL } else { before.sa_sigaction } {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            set_default(signal);
            if is_sent {
                // SAFETY: async-signal-safe. The signal arrives after this handler has returned.
                unsafe { libc::raise(signal) };
            }
            // The fault happens again, and the kernel takes the default action.
        }
        // SAFETY: a handler of this kind was installed.
        handler => unsafe {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                let handler: HandlerWithInfo = std::mem::transmute(handler);
                handler(signal, info, context);
            } else {
                let handler: Handler = std::mem::transmute(handler);
                handler(signal);
            }
        },
    }
}

fn set_default(signal: libc::c_int) {
    // SAFETY: an action is plain data for which all zero is valid: the default. Async-signal-safe.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, std::ptr::null_mut());
    }
}

/// The earlier actions of the two signals.
struct Before([UnsafeCell<MaybeUninit<libc::sigaction>>; 2]);

// SAFETY: written once, before the handler that reads it is installed.
unsafe impl Sync for Before {}

static BEFORE: Before = Before([const { UnsafeCell::new(MaybeUninit::zeroed()) }; 2]);

/// The earlier handlers with SA_RESETHAND that have had their single call.
static SPENT: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// The progress of the installation. Each step is done by one thread, and no thread waits for it.
static PROGRESS: AtomicU8 = AtomicU8::new(NOTHING);

const NOTHING: u8 = 0;
const PREPARING: u8 = 1;
const PREPARED: u8 = 2;
const INSTALLING: u8 = 3;
const INSTALLED: u8 = 4;

/// The kernel allows this process to copy by `process_vm_readv`.
static MAY_ASK_KERNEL: AtomicBool = AtomicBool::new(true);

/// The handling of a fault in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Our handler gets it.
    Stands,
    /// Our handler would get it, if the thread did not block the signals.
    Blocked,
    /// Another handler gets it.
    Missing,
}

thread_local! {
    /// The number of short copies until the next check, and the result of the last one.
    static LOOKED: Cell<(u32, Guard)> = const { Cell::new((0, Guard::Missing)) };
}

/// Prepares for the installation of handlers. It may wait for the dynamic loader, and a copy may
/// not: a copy may be made in a signal handler of the program, or in a fork's child.
pub fn prepare_copies() {
    let begun = PROGRESS.compare_exchange(NOTHING, PREPARING, Ordering::Acquire, Ordering::Relaxed);
    if begun.is_ok() {
        stay_loaded();
        PROGRESS.store(PREPARED, Ordering::Release);
    }
}

fn is_installed() -> bool {
    let begun =
        PROGRESS.compare_exchange(PREPARED, INSTALLING, Ordering::Acquire, Ordering::Acquire);
    if begun.is_ok() {
        install();
        PROGRESS.store(INSTALLED, Ordering::Release);
    }
    matches!(begun, Ok(_) | Err(INSTALLED))
}

/// Returns the handling of a fault in a copy of this thread.
fn guard(len: usize) -> Guard {
    let (left, found) = LOOKED.get();
    if left > 0 && len < LOOK_BYTES_MIN {
        LOOKED.set((left - 1, found));
        return found;
    }
    let found = if is_installed() { look() } else { Guard::Missing };
    LOOKED.set((COPIES_PER_LOOK, found));
    found
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn install() {
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        // SAFETY: the earlier action is not read before it is written, because the handler is
        // installed after that. The flags and mask are those that the earlier handler has asked
        // for.
        unsafe {
            let before = (*BEFORE.0[index].get()).as_mut_ptr();
            if libc::sigaction(signal, std::ptr::null(), before) != 0 {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if !matches!((*before).sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                let kept = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
                action.sa_flags = libc::SA_SIGINFO | (*before).sa_flags & kept;
                action.sa_mask = (*before).sa_mask;
            }
            let mut found: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &action, &mut found);
            if found.sa_sigaction != (*before).sa_sigaction {
                // A race: another thread has installed its handler meanwhile. It stays, as if it
                // had come after ours.
                libc::sigaction(signal, &found, std::ptr::null_mut());
            }
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn install() {}

/// A library that has installed a handler must not be unloaded.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn stay_loaded() {
    // SAFETY: the calls fill the struct, whose text lives as long as its library. A program, or a
    // library that is loaded under another name, is not found, and then this does nothing.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(handle as *const libc::c_void, &mut found) != 0
            && !found.dli_fname.is_null()
        {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            libc::dlopen(found.dli_fname, flags);
        }
    }
}

/// An action as the kernel has it. Wrappers around the C library's function are bypassed.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Checks that both handlers are ours, and that this thread has not blocked their signals.
fn look() -> Guard {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Guard::Missing;
    }
    let ours = handle as *const () as usize;
    let nothing = std::ptr::null::<u64>();
    let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let mut mask = 0_u64;
    let all_ours = SIGNALS.into_iter().all(|signal| {
        // SAFETY: the kernel fills the struct. Its set of signals has eight bytes.
        let asked = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, nothing, &raw mut action, 8_usize)
        };
        // A handler that `signal` has restored does not get the fault's details any more.
        let flags = action.flags as libc::c_int & (libc::SA_SIGINFO | libc::SA_RESETHAND);
        asked == 0 && action.handler == ours && flags == libc::SA_SIGINFO
    });
    if !all_ours || !change_mask(libc::SIG_BLOCK, None, Some(&mut mask)) {
        return Guard::Missing;
    }
    if mask & FAULTS == 0 { Guard::Stands } else { Guard::Blocked }
}

/// The signals, as a set of the kernel.
const FAULTS: u64 = 1 << (SIGNALS[0] - 1) | 1 << (SIGNALS[1] - 1);

/// Changes the signals that this thread has blocked, and returns those before. False if that
/// failed.
fn change_mask(how: libc::c_int, set: Option<&u64>, before: Option<&mut u64>) -> bool {
    let set = set.map_or(std::ptr::null(), std::ptr::from_ref);
    let before = before.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the kernel reads and fills sets of eight bytes, or nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, before, 8_usize) == 0 }
}

/// Unblocks the signals while `work` runs. `None` if one is pending for this thread, which would
/// arrive before the application wants it.
fn unblocked<T>(work: impl FnOnce() -> T) -> Option<T> {
    let (mut waiting, mut before) = (0_u64, 0_u64);
    // SAFETY: as above.
    let asked = unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut waiting, 8_usize) };
    if asked != 0
        || waiting & FAULTS != 0
        || !change_mask(libc::SIG_UNBLOCK, Some(&FAULTS), Some(&mut before))
    {
        return None;
    }
    let done = work();
    change_mask(libc::SIG_SETMASK, Some(&before), None);
    Some(done)
}

/// Makes the kernel copy. `None` where that is forbidden.
///
/// # Safety
/// As [`copy`].
unsafe fn copy_by_kernel(
    target: *mut u8,
    source: *const u8,
    len: usize,
    ours: Ours,
) -> Option<bool> {
    let mut done = 0;
    while done < len {
        if !MAY_ASK_KERNEL.load(Ordering::Relaxed) {
            return None;
        }
        let rest = len - done;
        let part =
            |at: *mut u8| libc::iovec { iov_base: at.wrapping_add(done).cast(), iov_len: rest };
        let (target, source) = (part(target), part(source.cast_mut()));
        // The call looks up the other process's memory page by page, which device memory does not
        // allow: that side is ours. SAFETY: as the caller promises. The kernel checks each page.
        let moved = unsafe {
            // The thread's number finds the memory also after the end of the first thread, whose
            // number is the process's.
            let process = libc::syscall(libc::SYS_gettid) as libc::pid_t;
            match ours {
                Ours::Source => libc::process_vm_readv(process, &target, 1, &source, 1, 0),
                Ours::Target => libc::process_vm_writev(process, &source, 1, &target, 1, 0),
            }
        };
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        match (moved, error) {
            (1.., _) => done += moved as usize,
            (0, _) | (_, libc::EFAULT) => return Some(false),
            (_, libc::EINTR) => {}
            (_, libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ESRCH) => {
                MAY_ASK_KERNEL.store(false, Ordering::Relaxed);
                return None;
            }
            // The error is not about a right, so a later call may succeed.
            _ => return None,
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests;
