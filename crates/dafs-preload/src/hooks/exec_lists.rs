//! `execl`, `execlp` and `execle` take their arguments as a variadic list. These hooks make an
//! array of the list, and call the functions that take arrays.

use libc::{c_char, c_int};

type List = *const *const c_char;

/// Number of arguments in registers, and the words between these, once they are stored, and the
/// rest.
const REGISTERS: usize = if cfg!(target_arch = "x86_64") { 6 } else { 8 };
const BETWEEN: usize = if cfg!(target_arch = "x86_64") { 1 } else { 0 };

/// The arguments of a call in memory.
struct Words(List);

impl Words {
    /// # Safety
    /// There are so many arguments.
    unsafe fn get(&self, at: usize) -> *const c_char {
        let at = if at < REGISTERS { at } else { at + BETWEEN };
        // SAFETY: the caller's promise.
        unsafe { self.0.add(at).read() }
    }

    /// The program's arguments behind the path, with the null at their end.
    ///
    /// # Safety
    /// The call is one of those that end with null.
    unsafe fn arguments(&self) -> Vec<*const c_char> {
        let mut all = Vec::new();
        loop {
            // SAFETY: the caller's promise.
            let one = unsafe { self.get(1 + all.len()) };
            all.push(one);
            if one.is_null() {
                return all;
            }
        }
    }
}

unsafe extern "C" fn list(words: List) -> c_int {
    let words = Words(words);
    // SAFETY: the arguments of `execl`.
    unsafe { libc::execv(words.get(0), words.arguments().as_ptr()) }
}

unsafe extern "C" fn list_by_name(words: List) -> c_int {
    let words = Words(words);
    // SAFETY: the arguments of `execlp`.
    unsafe { libc::execvp(words.get(0), words.arguments().as_ptr()) }
}

unsafe extern "C" fn list_with_environment(words: List) -> c_int {
    let words = Words(words);
    // SAFETY: the arguments of `execle`: the environment stands behind the null.
    unsafe {
        let arguments = words.arguments();
        let environment = words.get(1 + arguments.len()).cast();
        libc::execve(words.get(0), arguments.as_ptr(), environment)
    }
}

/// A function that stores the register arguments below the others, and calls another function with
/// their address.
macro_rules! gathering {
    ($name:ident, $to:ident) => {
        #[cfg(not(test))]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                // Unwind information, for debuggers.
                ".cfi_startproc",
                "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi",
                ".cfi_def_cfa_offset 56",
                "mov rdi, rsp",
                "sub rsp, 8",
                ".cfi_def_cfa_offset 64",
                "call {to}",
                "add rsp, 56",
                ".cfi_def_cfa_offset 8",
                "ret",
                ".cfi_endproc",
                to = sym $to,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_def_cfa_offset 80",
                ".cfi_offset x29, -80",
                ".cfi_offset x30, -72",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x0, sp, #16",
                "bl {to}",
                "ldp x29, x30, [sp], #80",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                to = sym $to,
            );
        }
    };
}

gathering!(execl, list);
gathering!(execlp, list_by_name);
gathering!(execle, list_with_environment);
