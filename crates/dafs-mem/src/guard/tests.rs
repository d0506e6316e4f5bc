//! Copies from and to missing memory.

use super::*;

const PAGE: usize = 4096;

/// Maps pages of memory, of which the last is missing.
fn with_hole(pages: usize, work: impl FnOnce(*mut u8)) {
    let bytes = pages * PAGE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping that only this test uses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let last = at.wrapping_byte_add(bytes - PAGE);
    // SAFETY: as above. The address range is still in use, so no other mapping is there.
    unsafe { libc::mprotect(last, PAGE, libc::PROT_NONE) };
    work(at.cast());
    // SAFETY: as above.
    unsafe { libc::munmap(at, bytes) };
}

fn both_ways(copy: impl Fn(*mut u8, *const u8, usize, Ours) -> bool) {
    with_hole(3, |at| {
        let own: Vec<u8> = (0..3 * PAGE).map(|i| (i % 251) as u8).collect();
        let mut back = vec![0; 3 * PAGE];
        for len in [0, 1, 7, 31, 32, 33, 100, PAGE, 2 * PAGE] {
            assert!(copy(at, own.as_ptr(), len, Ours::Source), "{len}");
            assert!(copy(back.as_mut_ptr(), at, len, Ours::Target), "{len}");
            assert_eq!(back[..len], own[..len]);
        }
        for start in [2 * PAGE - 33, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 40] {
            for len in [40, 100, PAGE - 40] {
                let there = at.wrapping_add(start);
                if start + len > 2 * PAGE {
                    assert!(!copy(there, own.as_ptr(), len, Ours::Source), "{start} {len}");
                    assert!(!copy(back.as_mut_ptr(), there, len, Ours::Target), "{start} {len}");
                }
            }
        }
        let nowhere = std::ptr::without_provenance_mut::<u8>(usize::MAX / 3);
        assert!(!copy(nowhere, own.as_ptr(), 8, Ours::Source));
        assert!(!copy(std::ptr::null_mut(), own.as_ptr(), 8, Ours::Source));
    });
}

#[test]
fn missing_memory_ends_a_copy() {
    install_now();
    // SAFETY: memory of the test's own, or none.
    both_ways(|target, source, len, ours| unsafe { copy(target, source, len, ours) });
    assert_eq!(look(), LOOKED.get().1);
}

/// Another test may be installing them.
fn install_now() {
    prepare_copies();
    while !is_installed() {
        std::thread::yield_now();
    }
    LOOKED.set((0, Guard::Missing));
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn all_that_touches_memory_is_guarded() {
    // mov rax, rcx; ret
    #[cfg(target_arch = "x86_64")]
    const END: &[u8] = &[0x48, 0x89, 0xc8, 0xc3];
    // mov x0, x2; ret
    #[cfg(target_arch = "aarch64")]
    const END: &[u8] = &[0xe0, 0x03, 0x02, 0xaa, 0xc0, 0x03, 0x5f, 0xd6];
    let start = copy_guarded as *const u8;
    // SAFETY: the end of the function's own code.
    let end = unsafe { std::slice::from_raw_parts(start.add(GUARDED_BYTES), END.len()) };
    assert_eq!(end, END);
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn a_page_that_fails_elsewhere_ends_no_copy() {
    // SAFETY: plain data for which zero is valid; the instruction is in it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let mut context: libc::ucontext_t = std::mem::zeroed();
        let context = (&raw mut context).cast();
        for (signal, code, is_ours) in [
            (libc::SIGBUS, libc::BUS_MCEERR_AO, false),
            (libc::SIGBUS, libc::BUS_MCEERR_AR, true),
            (libc::SIGSEGV, 5, true),
            (libc::SIGSEGV, libc::SI_USER, false),
        ] {
            info.si_code = code;
            *instruction(context) = copy_guarded as *const () as u64 + 4;
            assert_eq!(end_copy(signal, &mut info, context), is_ours, "{signal} {code}");
            assert_eq!(*instruction(context) == give_up as *const () as u64, is_ours);
        }
    }
}

/// Runs `work` in a fork, and returns its wait status.
fn in_fork(work: impl FnOnce()) -> libc::c_int {
    // SAFETY: the fork does only what a fork of a process with threads may do, and ends.
    unsafe {
        let process = libc::fork();
        assert!(process >= 0);
        if process == 0 {
            work();
            libc::_exit(3);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &mut status, 0), process);
        status
    }
}

#[test]
fn a_former_handler_that_wants_one_turn_has_it_and_ours_stays() {
    static TURNS: AtomicU8 = AtomicU8::new(0);
    extern "C-unwind" fn turn(_: libc::c_int) {
        TURNS.fetch_add(1, Ordering::Relaxed);
    }
    install_now();
    let status = in_fork(|| {
        // SAFETY: no other code runs in the fork.
        unsafe {
            let before = (*BEFORE.0[0].get()).as_mut_ptr();
            (*before).sa_sigaction = turn as *const () as usize;
            (*before).sa_flags = libc::SA_RESETHAND;
            libc::raise(libc::SIGSEGV);
            if TURNS.load(Ordering::Relaxed) != 1 || look() != Guard::Stands {
                libc::_exit(1);
            }
            libc::raise(libc::SIGSEGV);
        }
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:x}");
}

#[test]
fn the_kernel_copies_also_when_the_first_thread_is_gone() {
    extern "C" fn last(_: *mut libc::c_void) -> *mut libc::c_void {
        let (mut to, from) = ([0_u8; 8], [7_u8; 8]);
        // SAFETY: memory that belongs to this thread.
        unsafe {
            let part = |at: *mut u8| libc::iovec { iov_base: at.cast(), iov_len: 8 };
            let (target, source) = (part(to.as_mut_ptr()), part(from.as_ptr().cast_mut()));
            let process = libc::getpid();
            while libc::process_vm_readv(process, &target, 1, &source, 1, 0) == 8 {
                libc::usleep(100);
            }
            let copied = copy_by_kernel(to.as_mut_ptr(), from.as_ptr(), 8, Ours::Target);
            libc::_exit(i32::from(copied != Some(true) || to != from));
        }
    }
    let (mut to, from) = ([0_u8; 8], [7_u8; 8]);
    // SAFETY: as above.
    if unsafe { copy_by_kernel(to.as_mut_ptr(), from.as_ptr(), 8, Ours::Target) }.is_none() {
        return assert!(!MAY_ASK_KERNEL.load(Ordering::Relaxed));
    }
    let status = in_fork(|| {
        // SAFETY: the fork's first thread ends by itself, and the other ends the fork.
        unsafe {
            let mut thread = 0;
            libc::pthread_create(&mut thread, std::ptr::null(), last, std::ptr::null_mut());
            libc::syscall(libc::SYS_exit, 0);
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn the_kernel_copies_as_well() {
    // SAFETY: as above.
    both_ways(|target, source, len, ours| unsafe {
        copy_by_kernel(target, source, len, ours).unwrap_or_else(|| {
            assert!(!MAY_ASK_KERNEL.load(Ordering::Relaxed));
            copy(target, source, len, ours)
        })
    });
}

#[test]
fn a_thread_that_blocks_the_signals_is_not_ended() {
    install_now();
    with_hole(2, |at| {
        let own = vec![1u8; 2 * PAGE];
        // SAFETY: changes the mask of this thread alone, and restores it.
        unsafe {
            let (mut all, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
            LOOKED.set((0, Guard::Missing));
            assert!(!copy(at, own.as_ptr(), 2 * PAGE, Ours::Source));
            if look() != Guard::Missing {
                assert_eq!(LOOKED.get().1, Guard::Blocked);
                let guarded = || copy_guarded(at, own.as_ptr(), 2 * PAGE);
                assert_eq!(unblocked(guarded), Some(PAGE));
                assert_eq!(look(), Guard::Blocked, "as it was before");
                // A signal that the program has sent to itself arrives when the program wants it.
                libc::pthread_kill(libc::pthread_self(), libc::SIGSEGV);
                assert_eq!(unblocked(guarded), None);
                LOOKED.set((0, Guard::Missing));
                assert!(!copy(at, own.as_ptr(), 2 * PAGE, Ours::Source));
                let mut sent = 0;
                assert_eq!(libc::sigwait(&all, &mut sent), 0);
                assert_eq!(sent, libc::SIGSEGV);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            LOOKED.set((0, Guard::Missing));
        }
    });
}
