//! Files of a DAFS server for programs that cannot be changed: a library that stands before the C
//! library and serves what they do below a prefix. `dafs run` puts it there.
//!
//! | module | what it does |
//! |---|---|
//! | `hooks` | the functions of the C library that are stood before, by theme |
//! | `config`, `location` | which paths are served, and where they are on the server |
//! | `descriptor`, `table` | a real descriptor behind every file, and what each stands for |
//! | `session` | a session per server and process, opened at the first use |
//! | `signals`, `interrupt` | keeps signal handlers out of what we do, and ends what waits in vain |
//! | `life`, `alarm` | the beginning and the end of a process, and its forks |
//! | `maps` | the memory that stands for mapped files |
//! | `program`, `report` | who is not served, and what is told at the end |
//! | `files`, `names`, `attributes`, `listing`, `locks`, `streams`, `wide` | what the calls do |
//!
//! Invariants
//! * What is not below a prefix reaches the C library with the arguments it came with.
//! * A descriptor of a served file is a real one of the kernel's, sealed and only for writing, so
//!   that code that gets past this library neither reads nor writes anything by it.
//! * Nothing here unwinds into the program: a panic is an `EIO`.
//! * A fork uses nothing of its parent's sessions, and takes no lock that another thread of its
//!   parent's may have held.

// Tests stand before nothing, so that much of it has no caller in them.
#![cfg_attr(test, allow(dead_code, reason = "the hooks are no symbols of the tests"))]

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
mod program;
mod report;
mod session;
mod signals;
mod streams;
mod table;
mod wide;
