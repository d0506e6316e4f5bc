//! Layouts over DAFS: clients made of raw messages request layouts of a server, and read and write
//! at its data servers themselves, over iWARP.

mod harness;
mod holders;
mod late;
mod recalls;
mod refusals;
mod secrets;
mod stripes;
