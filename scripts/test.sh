#!/bin/bash
# test.sh [--long] [PART...] -- everything that must hold before a change goes in; `make test` and
# `make test-long` call it. PARTs are shell patterns that choose among the parts by name, such as
# `lint` or `'e2e/*'`; a part that is named in full runs, however long it takes.
#
# The parts are listed in parts.txt. With SINCE=REV in the environment the run has the long parts, too, that
# are about a file which differs from that commit.
#
# A part is a command: exit status 0 is a pass, 77 a skip whose reason is its last line of output,
# anything else a failure. All parts run, whatever the ones before them did.
#
# Invariants
# * A skip is never silent: it is listed with its reason at the end, and fails the run if CI=true.
# * A run without a part, and a PART that matches none, is an error.
# * Nothing outlives this script: parts run under `timeout`, guests in namespaces of their own.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# shellcheck source=scripts/env.sh
source scripts/env.sh

if [[ ${1:-} == --long ]]; then
    shift
    export DAFS_TEST_LONG=1
fi
chosen=("$@")

# The end-to-end scripts and lab tests find the programs by these.
target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TERM_COLOR=never DAFS=$target/debug/dafs DAFS_TARGET=$target/debug
# A build in CI is thrown away, so it needs neither incremental state nor debug information.
[[ ${CI:-} != true ]] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
logs=$target/test-logs
rm -rf "$logs"
mkdir -p "$logs"

passed=() failed=() skipped=() took=()
# The parts under way, by process.
declare -A names=() starts=() limits=()
# Tests with processes and in namespaces of their own mostly wait, so two of them run at a time.
beside_max=2

# The files that differ from the commit SINCE, with those that git does not know yet.
changed=()
if [[ ${SINCE:-} ]]; then
    mapfile -t changed < <(git diff --name-only --no-renames "$SINCE" -- && git ls-files --others --exclude-standard)
    [[ ${#changed[@]} != 0 ]] || git diff --quiet "$SINCE" -- || exit 2
    commit=$(git log -1 --format='%h (%s)' "$SINCE" 2>/dev/null)
    echo "${#changed[@]} files differ from ${commit:-$SINCE}"
fi

# is_touched PATH... -- has one of these files, or one in these folders, changed?
is_touched() {
    local path file
    for path in "$@"; do
        for file in ${changed[@]+"${changed[@]}"}; do
            [[ $file != "$path" && $file != "$path"/* ]] || return 0
        done
    done
    return 1
}

# is_chosen NAME WHEN PATH... -- does this part belong to the run?
is_chosen() {
    local name=$1 when=$2 pattern
    shift 2
    for pattern in ${chosen[@]+"${chosen[@]}"}; do
        [[ $name != "$pattern" ]] || return 0
    done
    [[ $when == always || ${DAFS_TEST_LONG:-} ]] || is_touched "$@" || return 1
    [[ ${#chosen[@]} != 0 ]] || return 0
    for pattern in "${chosen[@]}"; do
        # shellcheck disable=SC2053
        [[ $name != $pattern ]] || return 0
    done
    return 1
}

# The counts of cargo's test harness in the log $1, if it ran.
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

# book PROCESS STATUS -- note and print how a part has ended.
book() {
    local name=${names[$1]} seconds=$((SECONDS - starts[$1])) status=$2 log reason=''
    log=$logs/${name//\//-}.log
    took+=("$seconds $name")
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
        [[ $status != 124 && $status != 137 ]] || reason=" (over its limit of ${limits[$1]} s)"
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
    await_besides 0
    begin "$@"
    wait "$process"
    book "$process" $?
}

# beside NAME LIMIT_SECONDS COMMAND... -- the same for a part that may run beside others of its kind.
beside() {
    local process
    await_besides $((beside_max - 1))
    begin "$@"
}

# await_besides MAX -- wait until at most MAX parts are under way.
await_besides() {
    local process ended status
    while [[ ${#names[@]} -gt $1 ]]; do
        status=0
        wait -n -p process "${!names[@]}" || status=$?
        # Of several that end at the same moment, bash may name one only.
        for ended in ${process:-"${!names[@]}"}; do
            [[ ${process:-} ]] || ! kill -0 "$ended" 2>/dev/null || continue
            [[ ${process:-} ]] || { status=0; wait "$ended" || status=$?; }
            book "$ended" "$status"
        done
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

tests() {
    local ignored=()
    [[ ! ${DAFS_TEST_LONG:-} ]] || ignored=(-- --include-ignored)
    cargo test --locked --no-fail-fast --workspace --lib --bins --tests ${ignored[@]+"${ignored[@]}"}
}

fuzz() {
    local seconds=10
    [[ ! ${DAFS_TEST_LONG:-} ]] || seconds=60
    fuzz/run.sh "${FUZZ_SECONDS:-$seconds}"
}

# Waits for the build in the background, which holds the lock, or builds.
guest() {
    lab/lab.sh check || return 77
    lab/lab.sh build
}

# The guest's kernel takes as long as all else together, so it is built beside the rest, and
# yields to it.
build_guest_in_background() {
    timeout 3000 nice -n 5 bash -c 'lab/lab.sh check && lab/lab.sh build' \
        >"$logs/guest-background.log" 2>&1 </dev/null &
}

# lab_test [VARIABLE=VALUE...] SCRIPT
lab_test() {
    lab/lab.sh check || return 77
    env "$@"
}
export -f format lint tests fuzz guest lab_test

# The slowest test binaries, by what the harness says at the end of each. The first source that cargo notes
# beside a binary tells its crate.
slowest_binaries() {
    awk '
        / Running .*\(.*\)$/ {
            binary = $NF
            gsub(/[()]/, "", binary)
            source = binary
            if ((getline line < (binary ".d")) > 0 && match(line, /crates\/[^ ]*\.rs/))
                source = substr(line, RSTART, RLENGTH)
            close(binary ".d")
        }
        /^test result:.* finished in / { printf "%8.1f s  %s\n", $NF, source }' "$1" |
        sort -rn | head -n 20
}

# The lines of the log $1 with the causes of a failure, for a reader who sees only the end of a run.
causes() {
    {
        grep -aE '^test .* FAILED$' "$1" | tail -n 6
        grep -aE '^--- after [0-9]+ s: |^FAILED' "$1" | tail -n 3
        # The last message of a test of mounts stands before the logs of servers and guests.
        grep -aE -B 6 -m 1 "^--- the end of the server's log" "$1"
        # Errors that servers repeat often differ from the first one, the cause.
        grep -aE ' ERROR ' "$1" | head -n 3
        # A thread that a test started panics before the test does.
        grep -aA 3 -E 'panicked at' "$1" | head -n 12
        grep -aA 3 -E '^error' "$1" | tail -n 8
        # The findings of fuzzing: the cause, and the input that leads there.
        grep -aE '^found in |^input ' "$1" | head -n 60
        tail -n 4 "$1"
    } | cut -c 1-300 | sed 's/^/    | /'
}

summary() {
    local line
    if [[ ${#took[@]} -gt 1 ]]; then
        printf '\nthe slowest parts:\n'
        printf '%s\n' "${took[@]}" | sort -rn | head -n 20 | awk '{ printf "%8d s  %s\n", $1, $2 }'
    fi
    if [[ -f $logs/tests.log ]]; then
        printf '\nthe slowest test binaries:\n'
        slowest_binaries "$logs/tests.log"
    fi
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

trap 'mapfile -t ended < <(jobs -p); kill ${ended[@]+"${ended[@]}"} 2>/dev/null; wait' EXIT
trap 'exit 130' INT TERM
# The table is read once, so that a run goes by the table that it began with.
mapfile -t table < <(grep -vE '^(#|$)' scripts/parts.txt)
rows=()
for row in "${table[@]}"; do
    read -r name when _ <<<"$row"
    read -ra about <<<"${row#* : }"
    read -ra words <<<"${row%% : *}"
    # The script that the part runs is the last word of its command.
    ! is_chosen "$name" "$when" "${about[@]}" "${words[-1]}" || rows+=("${row%% : *}")
done
for pattern in ${chosen[@]+"${chosen[@]}"}; do
    for row in "${table[@]}"; do
        # shellcheck disable=SC2053
        [[ ${row%% *} != $pattern ]] || continue 2
    done
    echo "test.sh: scripts/parts.txt has no part '$pattern'" >&2
    exit 2
done
[[ ${#rows[@]} != 0 ]] || { echo "test.sh: no part of scripts/parts.txt is to run" >&2; exit 2; }
for row in ${rows[@]+"${rows[@]}"}; do [[ $row != guest\ * ]] || build_guest_in_background; done
for row in ${rows[@]+"${rows[@]}"}; do
    read -r name _ limit_seconds command <<<"$row"
    read -ra words <<<"$command"
    case $name in
    */*) beside "$name" "$limit_seconds" "${words[@]}" ;;
    *) part "$name" "$limit_seconds" "${words[@]}" ;;
    esac
done
await_besides 0
summary
[[ ${#failed[@]} == 0 && (${CI:-} != true || ${#skipped[@]} == 0) ]]
