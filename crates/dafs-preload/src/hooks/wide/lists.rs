//! `wprintf`, `wscanf` and their relatives, which are variadic. These hooks make a `va_list` of the
//! arguments, and call the functions that take one.

use super::{
    __isoc23_vfwscanf, __isoc23_vwscanf, __isoc99_vfwscanf, __isoc99_vwscanf, __vfwprintf_chk,
    __vwprintf_chk, vfwprintf, vfwscanf, vwprintf, vwscanf,
};
use libc::c_int;

/// A function that stores the argument registers, and builds a `va_list` of them and of the
/// arguments on the stack. It then calls another function with the list's address behind the named
/// arguments.
///
/// A thread may be cancelled while it waits in that function: the unwinder must find the cleanup
/// handlers above.
///
/// The registers are given by the number of named arguments, as the two machines call them.
macro_rules! listing {
    ($name:ident, $to:ident, $named:literal, $x86_64:literal, $aarch64:literal) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                // Six registers, eight vectors, the list of 24 bytes, and 8 for the alignment.
                "sub rsp, 208",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                // An upper bound of the vector registers in use.
                "test al, al",
                "jz 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2: mov dword ptr [rsp + 176], {named} * 8",
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $x86_64, ", [rsp + 176]"),
                "call {to}",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "ret",
                ".cfi_endproc",
                named = const $named,
                to = sym $to,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                // Two registers, eight registers, eight vectors, and the list of 32 bytes.
                ".cfi_startproc",
                "stp x29, x30, [sp, #-240]!",
                ".cfi_def_cfa_offset 240",
                ".cfi_offset x29, -240",
                ".cfi_offset x30, -232",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "add x9, sp, #240",
                "add x10, sp, #80",
                "stp x9, x10, [sp, #208]",
                "add x9, sp, #208",
                "str x9, [sp, #224]",
                "mov w9, #({named} * 8 - 64)",
                "mov w10, #-128",
                "stp w9, w10, [sp, #232]",
                concat!("add ", $aarch64, ", sp, #208"),
                "bl {to}",
                "ldp x29, x30, [sp], #240",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                named = const $named,
                to = sym $to,
            );
        }
    };
}

listing!(wprintf, vwprintf, 1, "rsi", "x1");
listing!(fwprintf, vfwprintf, 2, "rdx", "x2");
listing!(__wprintf_chk, __vwprintf_chk, 2, "rdx", "x2");
listing!(__fwprintf_chk, __vfwprintf_chk, 3, "rcx", "x3");
listing!(wscanf, vwscanf, 1, "rsi", "x1");
listing!(fwscanf, vfwscanf, 2, "rdx", "x2");
listing!(__isoc99_wscanf, __isoc99_vwscanf, 1, "rsi", "x1");
listing!(__isoc99_fwscanf, __isoc99_vfwscanf, 2, "rdx", "x2");
listing!(__isoc23_wscanf, __isoc23_vwscanf, 1, "rsi", "x1");
listing!(__isoc23_fwscanf, __isoc23_vfwscanf, 2, "rdx", "x2");
