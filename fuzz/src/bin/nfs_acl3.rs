#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dafs_fuzz::nfs_acl3::run(input));
