//! Steady traffic allocates no memory. These tests are alone in their process, because an allocator belongs
//! to it. It counts for each thread, so the tests do not disturb each other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unreachable_pub, dead_code, reason = "a module of another test program")]

#[path = "../rpc/rdma/common.rs"]
mod common;
mod rdma;
mod rdma_client;
mod tcp;

use dafs_testkit_rpc::peer;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a counter per thread.
struct Counting;

// SAFETY: every method passes its arguments on to the system's allocator; the counter allocates
// nothing and needs no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
