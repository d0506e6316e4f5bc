//! The providers, by the contract that all of them keep and by what each promises beyond it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[macro_use]
#[path = "../contract/mod.rs"]
mod contract;
mod iwarp;
mod iwarp_kernel;
mod iwarp_receiver_prop;
mod iwarp_wire;
#[path = "../shm/pair.rs"]
mod pair;
#[path = "../pki/mod.rs"]
mod pki;
#[path = "../raw/mod.rs"]
mod raw;
mod shm;
mod shm_contract;
mod shm_hostile;
#[path = "../shm/raw.rs"]
mod shm_raw;
mod shm_sleep;
mod sim;
mod sim_contract;
mod tls;
mod tls_full;
