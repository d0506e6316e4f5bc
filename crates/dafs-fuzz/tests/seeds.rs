//! The inputs in `fuzz/seeds`, given to their targets once.
//!
//! A target without inputs fails here, and so does one that has no program in `fuzz/`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

macro_rules! targets {
    ($($name:ident)*) => {
        &[$((stringify!($name), dafs_fuzz::$name::run)),*]
    };
}

/// The body of a target.
type Target = fn(&[u8]);

/// Each target by its name.
const TARGETS: &[(&str, Target)] = targets! {
    block_directory cluster_frames dafs_attributes dafs_entries dafs_request dafs_response
    exposed_blocks gss_keytab gss_tokens hand_over http_head
    iwarp_connection iwarp_ddp iwarp_mpa iwarp_rdmap iwarp_receive journal_scan
    nfs3_args nfs3_results nfs4_attributes nfs4_callback nfs4_compound nfs4_layouts nfs4_state
    nfs_acl3 nlm4 remote_blocks rpc_gss rpc_gss_accept rpc_gss_reply rpc_header rpc_stream
    rpcrdma_client rpcrdma_header rpcrdma_private_data rpcrdma_server
    shm_packets tls_certificate tls_first_bytes
};

fn fuzz(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(below)
}

/// The names in a folder of `fuzz/`, without their suffixes.
fn names(below: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(fuzz(below)).unwrap();
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    entries.map(|entry| name(entry.unwrap().path())).collect()
}

#[test]
fn every_target_has_a_program_and_seeds() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("src/bin"), targets);
    assert_eq!(names("seeds"), targets);
}

#[test]
fn seeds_find_nothing() {
    let mut found = Vec::new();
    for (name, run) in TARGETS {
        let mut seeds = 0;
        for entry in fs::read_dir(fuzz("seeds").join(name)).unwrap() {
            let path = entry.unwrap().path();
            let input = fs::read(&path).unwrap();
            let before = dafs_dat::confine::faults();
            let result = std::panic::catch_unwind(|| run(&input));
            if result.is_err() || dafs_dat::confine::faults() != before {
                found.push(path);
            }
            seeds += 1;
        }
        assert!(seeds > 0, "{name} has no seeds");
    }
    assert!(found.is_empty(), "a panic, printed above, by {found:?}");
}
