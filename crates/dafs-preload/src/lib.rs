//! Files of a DAFS server for unmodified programs: a library that interposes the C library's
//! functions and serves the calls below a prefix. `dafs run` preloads it.
//!
//! | module | purpose |
//! |---|---|
//! | `hooks` | the interposed functions of the C library, by theme |
//! | `config`, `location` | the served paths, and their places on the server |
//! | `descriptor`, `table` | a real descriptor behind every file, and the open file of each |
//! | `session` | a session per server and process, opened at the first use |
//! | `acting` | the user of each call |
//! | `signals`, `interrupt` | defers signal handlers during calls, and ends waits in vain |
//! | `life`, `alarm` | the beginning and the end of a process, and its forks |
//! | `maps` | the memory of mapped files |
//! | `watch` | counts of calls on files of this machine, for `dafs advise` |
//! | `program`, `report` | programs that are not served, and the report at the end |
//! | `files`, `names`, `attributes`, `listing`, `locks`, `streams`, `wide` | the operations |
//!
//! Invariants
//! * A call outside all prefixes reaches the C library with unchanged arguments.
//! * A descriptor of a served file is a real one of the kernel, sealed and only for writing. Code
//!   that bypasses this library therefore neither reads nor writes data through it.
//! * No panic unwinds into the program: it becomes an `EIO`.
//! * A fork uses nothing of its parent's sessions, and takes no lock that another thread of its
//!   parent's may have held.

// The tests interpose nothing, so much of the code has no caller in them.
#![cfg_attr(test, allow(dead_code, reason = "the hooks are no symbols of the tests"))]

mod acting;
mod alarm;
mod attributes;
mod config;
mod copies;
mod descriptor;
mod failure;
mod files;
mod holder;
mod hooks;
mod host_locks;
mod interrupt;
mod life;
mod limits;
mod listing;
mod location;
mod locks;
mod maps;
mod names;
mod next;
mod report;
mod session;
mod signals;
mod streams;
mod table;
mod watch;
mod wide;
