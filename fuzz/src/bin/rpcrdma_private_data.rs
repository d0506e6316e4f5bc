#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dafs_fuzz::rpcrdma_private_data::run(input));
