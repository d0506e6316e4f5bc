#!/bin/bash
# run.sh [SECONDS] [TARGET...] -- build the fuzz targets and run each for SECONDS (default 10), or
# those named. Exit status 0 means that nothing was found; an input that crashes, hangs or eats
# memory ends up in artifacts/TARGET/ and fails the run.
#
# To add a target: its body in ../crates/dafs-fuzz, src/bin/NAME.rs here, and a few small inputs in
# seeds/NAME/, which the tests of dafs-fuzz replay. Nothing has to be changed here. A finding of a run
# worth keeping is in corpus/NAME/ and is used by the next one; it is not checked in.
#
# To look into a finding: run.sh 0 builds; then target/HOST/release/NAME artifacts/NAME/FILE
# replays it with a backtrace (RUST_BACKTRACE=1).
#
# Invariants
# * A stable compiler and a C++ compiler are all it needs: coverage comes from rustc's own
#   sanitizer-coverage pass, libFuzzer from the source in its crate.
# * --target keeps the coverage flags away from build scripts, which have nothing to call.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

seconds=${1:-10}
[[ $# == 0 ]] || shift
[[ $seconds =~ ^[0-9]+$ ]] || {
    echo "run.sh: '$seconds' is not a number of seconds; usage: run.sh [SECONDS] [TARGET...]" >&2
    exit 2
}
targets=("$@")
[[ ${#targets[@]} != 0 ]] || mapfile -t targets < <(basename -s .rs src/bin/*.rs)

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${FUZZ_TARGET_DIR:-$PWD/target}
RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module"
RUSTFLAGS+=" -Cllvm-args=-sanitizer-coverage-level=4"
RUSTFLAGS+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
RUSTFLAGS+=" -Cllvm-args=-sanitizer-coverage-pc-table"
RUSTFLAGS+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
export RUSTFLAGS
bins=()
for target in "${targets[@]}"; do
    bins+=(--bin "$target")
done
cargo build --release --quiet --target "$host" "${bins[@]}"
[[ $seconds != 0 ]] || exit 0

# run TARGET -- fuzz it, and say what came of it; with status 1 if something was found.
run() {
    local target=$1 log=$CARGO_TARGET_DIR/$1.log dirs=("corpus/$1") result=ok runs covered
    mkdir -p "corpus/$target" "artifacts/$target"
    [[ ! -d seeds/$target ]] || dirs+=("seeds/$target")
    "$CARGO_TARGET_DIR/$host/release/$target" "${dirs[@]}" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=4096 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" >"$log" 2>&1 || result=FAILED
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    printf '%-24s %-6s %10s runs  %6s edges\n' "$target" "$result" "${runs:-?}" "${covered:-?}"
    [[ $result == ok ]] || { tail -n 40 "$log"; return 1; }
}

failed=()
# As many at a time as there are processors: each is one thread.
declare -A running=()
await() {
    local process
    while [[ ${#running[@]} -gt $1 ]]; do
        wait -n -p process "${!running[@]}" || failed+=("${running[$process]}")
        unset "running[$process]"
    done
}
for target in "${targets[@]}"; do
    await $(($(nproc) - 1))
    run "$target" &
    running[$!]=$target
done
await 0
for target in ${failed[@]+"${failed[@]}"}; do
    # Enough to go on with for whoever sees only what was printed: `base64 -d` makes the input of it.
    sed -nE "/panicked at|ERROR: |SUMMARY: /s/^/found in $target: /p" "$CARGO_TARGET_DIR/$target.log"
    sed -n 's/.*Test unit written to //p' "$CARGO_TARGET_DIR/$target.log" | while read -r input; do
        echo "found in $target: $input is"
        base64 -w 250 "$input" | sed 's/^/input /'
    done
done
if [[ ${#failed[@]} != 0 ]]; then
    echo "fuzzing found something in: ${failed[*]} (inputs in fuzz/artifacts/)" >&2
    exit 1
fi
