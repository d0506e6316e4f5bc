#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dafs_fuzz::hand_over::run(input));
