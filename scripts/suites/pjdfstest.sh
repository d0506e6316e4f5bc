#!/bin/bash
# The suite pjdfstest on a mount that acts at the server as the user of each program: as root, where the
# suite switches among users and groups, and as an ordinary user. A case that the exported file system
# passes must pass on the mount.
#
# DAFS_PJDFSTEST is the folder of the suite, with its program built: CONTRIBUTING.md.
source "$(dirname "$0")/../e2e/lib.sh"

# Most of a test's time is sleep.
TESTS_AT_A_TIME=4
TEST_SECONDS=300
# The suite has 8,800 cases. Fewer than these were no run of it.
CASES_MIN=5000

[[ ${DAFS_PJDFSTEST:-} ]] || skip "DAFS_PJDFSTEST does not name the suite pjdfstest; CONTRIBUTING.md tells how to build it"
for program in openssl awk timeout xargs; do
    command -v "$program" >/dev/null || skip "there is no $program, which the suite needs"
done
needs_mounts
needs_users

suite=$(realpath "$DAFS_PJDFSTEST")
[[ -x $suite/pjdfstest ]] || fail "there is no $suite/pjdfstest; build it as CONTRIBUTING.md tells"
"${as_other[@]}" test -x "$suite/pjdfstest" -a -r "$suite/tests/misc.sh" ||
    fail "other users cannot read $suite; put it into a folder that is open to all"
mapfile -t tests < <(cd "$suite/tests" && find . -name '*.t' -printf '%P\n' | LC_ALL=C sort)
[[ ${#tests[@]} != 0 ]] || fail "$suite/tests has no tests"

# one LOGS FOLDER SUITE TEST COMMAND... -- runs a test in a folder of its own, by a command before the shell.
cat >"$work/one" <<'END'
#!/bin/bash
name=${4//\//-}
mkdir -m 777 "$2/$name" && cd "$2/$name" || exit 255
"${@:5}" sh "$3/tests/$4" >"$1/$name" 2>&1 </dev/null
exit 0
END
chmod 755 "$work/one"

# run_suite LOGS FOLDER COMMAND... -- runs all tests below a folder.
run_suite() {
    mkdir "$1"
    mkdir -m 777 "$2"
    printf '%s\n' "${tests[@]}" | xargs -P "$TESTS_AT_A_TIME" -I TEST \
        "$work/one" "$1" "$2" "$suite" TEST timeout "$TEST_SECONDS" "${@:3}" ||
        fail "a test did not begin in $2"
}

# bad LOGS -- a line for each case that failed or did not run, its test and its number; number 0 is a test
# that did not say how many cases it has. The suite marks cases that do not count.
bad() {
    local log
    for log in "$1"/*; do
        awk -v test="${log##*/}" '
            /^1\.\.[0-9]+/ { plan = substr($1, 4) + 0; is_planned = 1 }
            /^ok [0-9]+/ { good[$2 + 0] = 1 }
            /^not ok [0-9]+ # [T]ODO/ { good[$3 + 0] = 1 }
            END {
                if (!is_planned) print test, 0
                for (number = 1; number <= plan; number++) if (!(number in good)) print test, number
            }' "$log"
    done | LC_ALL=C sort
}

# passed LOGS -- the number of cases that passed.
passed() { cat "$1"/* | grep -Ec '^ok [0-9]+' || true; }

export=$work/export
point=$work/point
mkdir -m 777 "$export"
mkdir "$point" "$work/local" "$work/logs"
undo+=("umount -l '$point' 2>/dev/null")
serve "$export" --no-root-squash
"$dafs" mount "$url/" "$point"

# compare WHO COMMAND... -- runs the suite beside the export and on the mount.
compare() {
    local who=$1 test number
    shift
    local here=$work/logs/$who-local there=$work/logs/$who-mount
    step "$who, on the file system of the export"
    run_suite "$here" "$work/local/$who" "$@"
    step "$who, on the mount"
    run_suite "$there" "$point/$who" "$@"
    bad "$here" >"$work/$who.local"
    bad "$there" >"$work/$who.mount"
    echo "$(passed "$here") cases passed without a mount, $(passed "$there") on it"
    LC_ALL=C comm -13 "$work/$who.local" "$work/$who.mount" >"$work/$who.worse"
    [[ -s $work/$who.worse ]] || return 0
    while read -r test number; do
        echo "$test: $(grep -E "^not ok $number( |\$)" "$there/$test" || echo "no case $number")"
    done <"$work/$who.worse"
    worse+=("$who")
}
worse=()
compare root
[[ $(passed "$work/logs/root-local") -ge $CASES_MIN ]] || fail "too few cases passed without a mount"
compare user setpriv --reuid 1234 --regid 1234 --clear-groups
[[ ${#worse[@]} == 0 ]] || fail "cases of ${worse[*]} pass on the file system of the export, and not on the mount"

"$dafs" umount "$point"
stop_server
