#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dafs_fuzz::tls_first_bytes::run(input));
