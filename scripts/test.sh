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

ignored=()
if [[ ${1:-} == --long ]]; then
    shift
    ignored=(-- --include-ignored)
    export DAFS_TEST_LONG=1
fi
chosen=("$@")

# The end-to-end scripts and lab tests find the programs by these.
target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TERM_COLOR=never DAFS=$target/debug/dafs DAFS_TARGET=$target/debug
# What is built once and thrown away needs nothing by which to build it again, or to debug it.
[[ ${CI:-} != true ]] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
logs=$target/test-logs
rm -rf "$logs"
mkdir -p "$logs"

passed=() failed=() skipped=()
# The parts under way, by process, and the build of the guest.
declare -A names=() starts=() limits=()
guest_build=
# Tests with processes and in namespaces of their own mostly wait, so two of them run at a time.
beside_max=2

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

# begin NAME LIMIT_SECONDS COMMAND... -- start a part; `process` is set.
begin() {
    local name=$1 limit_seconds=$2
    shift 2
    # Through bash, so that a part may be one of the functions below; in the background, so that an
    # interrupt is not kept waiting for it.
    timeout -k 10 "$limit_seconds" bash -c '"$@"' part "$@" >"$logs/${name//\//-}.log" 2>&1 </dev/null &
    process=$!
    names[$process]=$name starts[$process]=$SECONDS limits[$process]=$limit_seconds
}

# book PROCESS STATUS -- note and tell how a part has ended.
book() {
    local name=${names[$1]} seconds=$((SECONDS - starts[$1])) status=$2 log reason=''
    log=$logs/${name//\//-}.log
    case $status in
    0)
        passed+=("$name")
        printf '%-28s ok      %4d s%s\n' "$name" "$seconds" "$(cargo_counts "$log")"
        ;;
    77)
        reason=$(tail -n 1 "$log")
        skipped+=("$name: $reason")
        printf '%-28s SKIPPED %4d s  %s\n' "$name" "$seconds" "$reason"
        ;;
    *)
        [[ $status != 124 ]] || reason=" (over its limit of ${limits[$1]} s)"
        failed+=("$name: status $status$reason, log in $log")
        printf '%-28s FAILED  %4d s  status %d%s\n' "$name" "$seconds" "$status" "$reason"
        tail -n 60 "$log" | sed 's/^/    | /'
        ;;
    esac
    unset "names[$1]" "starts[$1]" "limits[$1]"
}

# part NAME LIMIT_SECONDS COMMAND... -- run one part, alone, and book its result.
part() {
    local process
    is_chosen "$1" || return 0
    await_besides 0
    begin "$@"
    wait "$process"
    book "$process" $?
}

# beside NAME LIMIT_SECONDS COMMAND... -- the same for a part that may run beside others of its kind.
beside() {
    local process
    is_chosen "$1" || return 0
    await_besides $((beside_max - 1))
    begin "$@"
}

# await_besides MAX -- wait until at most MAX parts are under way.
await_besides() {
    local process
    while [[ ${#names[@]} -gt $1 ]]; do
        wait -n -p process "${!names[@]}"
        book "$process" $?
    done
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
    guest_build=$!
}

lab_test() {
    lab/lab.sh check || return 77
    "$1"
}
# A test of mounts, over RDMA.
lab_test_over() { LAB_TRANSPORT=$1 lab_test "$2"; }
# The same past the server, to three data servers.
lab_test_spread() { LAB_LAYOUTS=$1 lab_test "$2"; }
export -f format lint fuzz guest lab_test lab_test_over lab_test_spread

# The lines of the log $1 that say what has failed, for whoever sees no more than the end of a run.
causes() {
    {
        grep -aE '^test .* FAILED$' "$1" | tail -n 6
        grep -aE '^--- after [0-9]+ s: |^FAILED' "$1" | tail -n 3
        # The last word of a test of mounts stands before what servers and guests said.
        grep -aE -B 6 -m 1 "^--- the end of the server's log" "$1"
        # What servers say again and again is often not what went wrong at first.
        grep -aE ' ERROR ' "$1" | head -n 3
        grep -aA 3 -E 'panicked at|^error' "$1" | tail -n 12
        # What fuzzing has found: the cause, and the input that leads there.
        grep -aE '^found in |^input ' "$1" | head -n 60
        tail -n 4 "$1"
    } | cut -c 1-300 | sed 's/^/    | /'
}

summary() {
    local line
    printf '\n%d parts in %d s\n' $((${#passed[@]} + ${#failed[@]} + ${#skipped[@]})) "$SECONDS"
    for line in ${failed[@]+"${failed[@]}"}; do
        echo "FAILED   $line"
        causes "${line##* log in }"
    done
    for line in ${skipped[@]+"${skipped[@]}"}; do echo "SKIPPED  $line"; done
    [[ ${CI:-} != true || ${#skipped[@]} == 0 ]] ||
        echo "CI=true: a skipped part counts as a failure of the run"
    echo "${#passed[@]} passed, ${#failed[@]} failed, ${#skipped[@]} skipped"
}

trap 'kill "${!names[@]}" $guest_build 2>/dev/null' EXIT
trap 'exit 130' INT TERM
build_guest_in_background
part tidy 60 scripts/tidy.sh
part format 60 format
part lint 1800 lint
part build 1800 cargo build --locked --workspace --bins --examples --lib
part dependencies 120 scripts/dependencies.sh
part tests 2700 cargo test --locked --no-fail-fast --workspace --lib --bins --tests ${ignored[@]+"${ignored[@]}"}
part doc-tests 900 cargo test --locked --workspace --doc
# A second build of twelve crates, so in longer runs alone.
[[ ! ${DAFS_TEST_LONG:-} ]] || part fuzz 3600 fuzz "${FUZZ_SECONDS:-120}"
for script in scripts/e2e/*.sh; do
    [[ ! -x $script ]] || beside "e2e/$(basename "$script" .sh)" 900 "$script"
done
part guest 3000 guest
for script in lab/tests/*.sh; do
    [[ ! -x $script ]] || beside "lab/$(basename "$script" .sh)" 900 lab_test "$script"
done
over_siw=(features files programs recovery sharing)
over_rxe=(client rdma)
[[ ! ${DAFS_TEST_LONG:-} ]] || over_rxe+=("${over_siw[@]}")
for test in "${over_siw[@]}" pnfs cluster; do
    beside "lab/nfs-$test-siw" 600 lab_test_over siw "lab/tests/nfs-$test.sh"
done
for test in "${over_rxe[@]}"; do
    beside "lab/nfs-$test-rxe" 600 lab_test_over rxe "lab/tests/nfs-$test.sh"
done
# The same past the server. Stripes stand for all layouts here; nfs-ceph and nfs-gluster go past the server
# on the other two, whose whole list of tests belongs to a longer run.
spread=(stripes)
[[ ! ${DAFS_TEST_LONG:-} ]] || spread+=(cephfs glusterfs)
for layouts in "${spread[@]}"; do
    for test in locks sharing files programs recovery; do
        beside "lab/nfs-$test-$layouts" 900 lab_test_spread "$layouts" "lab/tests/nfs-$test.sh"
    done
done
await_besides 0
summary
[[ ${#failed[@]} == 0 && (${CI:-} != true || ${#skipped[@]} == 0) ]]
