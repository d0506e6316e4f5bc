#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dafs_fuzz::rpc_gss_reply::run(input));
