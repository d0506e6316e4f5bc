#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dafs_fuzz::nfs4_attributes::run(input));
