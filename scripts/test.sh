#!/bin/bash
# test.sh [--long] [PART...] -- everything that must hold before a change goes in; `make test` and
# `make test-long` call it. PARTs are shell patterns that choose among the parts by name, such as
# `clippy` or `'e2e/*'`.
#
# A part is a command: exit status 0 is a pass, 77 a skip whose reason is its last line of output,
# anything else a failure. All parts run, whatever the ones before them did.
#
# Invariants
# * A skip is never silent: it is listed with its reason at the end, and fails the run if CI=true.
# * Nothing outlives this script: parts run under `timeout`, guests in namespaces of their own.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# shellcheck source=scripts/env.sh
source scripts/env.sh

fuzz_seconds=5 ignored=()
if [[ ${1:-} == --long ]]; then
    shift
    fuzz_seconds=${FUZZ_SECONDS:-120} ignored=(-- --include-ignored)
    export DAFS_TEST_LONG=1
fi
chosen=("$@")

# The end-to-end scripts and lab tests find the programs by these.
target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TERM_COLOR=never DAFS=$target/debug/dafs DAFS_TARGET=$target/debug
logs=$target/test-logs
rm -rf "$logs"
mkdir -p "$logs"

passed=() failed=() skipped=()
# Processes of ours: the part of the moment and the build of the guest.
running=()

is_chosen() {
    local pattern
    [[ ${#chosen[@]} != 0 ]] || return 0
    for pattern in "${chosen[@]}"; do
        # shellcheck disable=SC2053
        [[ $1 != $pattern ]] || return 0
    done
    return 1
}

# What the test harness of cargo counted in the log $1, if it ran.
cargo_counts() {
    awk '/^test result:/ { passed += $4; ignored += $8; ran = 1 }
        END { if (ran) printf "  %d tests, %d ignored", passed, ignored }' "$1"
}

# part NAME LIMIT_SECONDS COMMAND... -- run one part and book its result.
part() {
    local name=$1 limit_seconds=$2 started=$SECONDS status log reason
    shift 2
    is_chosen "$name" || return 0
    log=$logs/${name//\//-}.log
    printf '%-28s ' "$name"
    # Through bash, so that a part may be one of the functions below; in the background, so that an
    # interrupt is not kept waiting for it.
    timeout -k 10 "$limit_seconds" bash -c '"$@"' part "$@" >"$log" 2>&1 </dev/null &
    running[0]=$!
    wait "${running[0]}"
    status=$?
    unset "running[0]"
    case $status in
    0)
        passed+=("$name")
        printf 'ok      %4d s%s\n' $((SECONDS - started)) "$(cargo_counts "$log")"
        ;;
    77)
        reason=$(tail -n 1 "$log")
        skipped+=("$name: $reason")
        printf 'SKIPPED %4d s  %s\n' $((SECONDS - started)) "$reason"
        ;;
    *)
        [[ $status != 124 ]] || reason=" (over its limit of $limit_seconds s)"
        failed+=("$name: status $status${reason:-}, log in $log")
        printf 'FAILED  %4d s  status %d%s\n' $((SECONDS - started)) "$status" "${reason:-}"
        tail -n 60 "$log" | sed 's/^/    | /'
        ;;
    esac
}

format() {
    cargo fmt --version || { echo "this compiler came without rustfmt"; return 77; }
    cargo fmt --all --check -- --color never
}

lint() {
    cargo clippy --version || { echo "this compiler came without clippy"; return 77; }
    cargo clippy --locked --workspace --all-targets -- -D warnings
}

fuzz() {
    [[ -x fuzz/run.sh ]] || { echo "there is no fuzz/run.sh"; return 77; }
    fuzz/run.sh "$1"
}

# Waits for the build in the background, which holds the lock, or does it.
guest() {
    lab/lab.sh check || return 77
    lab/lab.sh build
}

# The guest's kernel takes as long as all else together, so it is built beside the rest, and
# yields to it.
build_guest_in_background() {
    is_chosen guest || return 0
    timeout 3000 nice -n 5 bash -c 'lab/lab.sh check && lab/lab.sh build' \
        >"$logs/guest-background.log" 2>&1 </dev/null &
    running[1]=$!
}

lab_test() {
    lab/lab.sh check || return 77
    "$1"
}
# A test of mounts, over RDMA.
lab_test_over() { LAB_TRANSPORT=$1 lab_test "$2"; }
export -f format lint fuzz guest lab_test lab_test_over

summary() {
    local line
    printf '\n%d parts in %d s\n' $((${#passed[@]} + ${#failed[@]} + ${#skipped[@]})) "$SECONDS"
    for line in ${failed[@]+"${failed[@]}"}; do echo "FAILED   $line"; done
    for line in ${skipped[@]+"${skipped[@]}"}; do echo "SKIPPED  $line"; done
    [[ ${CI:-} != true || ${#skipped[@]} == 0 ]] ||
        echo "CI=true: a skipped part counts as a failure of the run"
    echo "${#passed[@]} passed, ${#failed[@]} failed, ${#skipped[@]} skipped"
}

trap 'kill "${running[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
build_guest_in_background
part tidy 60 scripts/tidy.sh
part format 60 format
part lint 1800 lint
part build 1800 cargo build --locked --workspace --bins --examples --lib
part dependencies 120 scripts/dependencies.sh
part tests 1800 cargo test --locked --workspace --lib --bins --tests ${ignored[@]+"${ignored[@]}"}
part doc-tests 900 cargo test --locked --workspace --doc
part fuzz 3600 fuzz "$fuzz_seconds"
for script in scripts/e2e/*.sh; do
    [[ ! -x $script ]] || part "e2e/$(basename "$script" .sh)" 900 "$script"
done
part guest 3000 guest
for script in lab/tests/*.sh; do
    [[ ! -x $script ]] || part "lab/$(basename "$script" .sh)" 600 lab_test "$script"
done
over_siw=(features files programs recovery sharing)
over_rxe=(client rdma)
[[ ! ${DAFS_TEST_LONG:-} ]] || over_rxe+=("${over_siw[@]}")
for test in "${over_siw[@]}"; do
    part "lab/nfs-$test-siw" 600 lab_test_over siw "lab/tests/nfs-$test.sh"
done
for test in "${over_rxe[@]}"; do
    part "lab/nfs-$test-rxe" 600 lab_test_over rxe "lab/tests/nfs-$test.sh"
done
summary
[[ ${#failed[@]} == 0 && (${CI:-} != true || ${#skipped[@]} == 0) ]]
