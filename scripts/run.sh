#!/bin/bash
# run.sh -- a demonstration: serves a tree of real files, copies it in and out over both transports,
# compares every byte, and measures the same copy by cp. `make run` calls it.
#
# Invariants
# * It ends by itself and leaves only the built program behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/env.sh
source scripts/env.sh

FILES_MAX=6000
BYTES_MAX=$((160 << 20))
BIG_FILES=4
BIG_BYTES=$((64 << 20))

cargo build --release --locked -p dafs
dafs=${CARGO_TARGET_DIR:-target}/release/dafs
clock_ticks=$(getconf CLK_TCK)

work=$(mktemp -d "${TMPDIR:-/tmp}/dafs-run.XXXXXX")
server=
cleanup() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    wait 2>/dev/null || true
    chmod -R u+rwX "$work" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

free_kib=$(df -Pk "$work" | awk 'NR == 2 { print $4 }')
if [[ $free_kib -lt $((4 << 20)) ]]; then
    echo "there are less than 4 GiB free in $work; set TMPDIR to a place with more"
    exit 1
fi

# Some thousands of this machine's files, up to a limit, and some big ones.
make_tree() {
    local from
    mkdir "$work/tree" "$work/tree/big"
    for from in /usr/share /usr/lib /usr/include; do
        [[ -d $from ]] || continue
        (
            cd "$from"
            find . -xdev \( -type f -size -4M -readable -o -type l \) -printf '%s %p\0' 2>/dev/null |
                awk -v RS='\0' -v ORS='\0' -v files="$((FILES_MAX / 3))" \
                    -v bytes="$((BYTES_MAX / 3))" '
                    { size = $1; sub(/^[0-9]+ /, "") }
                    count < files && sum + size <= bytes { count++; sum += size; print }' |
                tar -c --null --no-recursion -T - 2>/dev/null
        ) | (mkdir -p "$work/tree$from" && cd "$work/tree$from" && tar -x --no-same-owner)
    done
    for from in $(seq "$BIG_FILES"); do
        head -c "$BIG_BYTES" /dev/urandom >"$work/tree/big/$from"
    done
}

# The compared attributes: one line for each object.
listing() {
    (
        cd "$1"
        find . \( -type d -printf '%y %m %T@ %P\0' \) -o -printf '%y %m %s %T@ %l %P\0'
    ) | LC_ALL=C sort -z
}

# compare TREE WHAT
compare() {
    if ! diff -r --no-dereference "$work/tree" "$1" >"$work/difference" ||
        ! cmp -s <(listing "$work/tree") <(listing "$1"); then
        head "$work/difference"
        echo "the copy made by $2 differs from the original"
        exit 1
    fi
    rm -rf "$1"
}

# CPU that process $1 has used, in clock ticks.
ticks() {
    [[ -n $1 ]] || { echo 0; return; }
    # The name of the program, in parentheses, may hold any character, so counting begins after it.
    sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'
}

# measure LABEL COMMAND... -- run the command and print its row of the table.
measure() {
    local label=$1 before after seconds user system
    shift
    before=$(ticks "$server")
    TIMEFORMAT='%R %U %S'
    { time "$@" 2>"$work/errors" || { cat "$work/errors"; exit 1; }; } 2>"$work/time"
    after=$(ticks "$server")
    read -r seconds user system < <(tail -n 1 "$work/time")
    awk -v label="$label" -v bytes="$bytes" -v objects="$objects" -v seconds="$seconds" \
        -v client="$user $system" -v server="$((after - before))" -v ticks="$clock_ticks" 'BEGIN {
            split(client, cpu, " ")
            if (seconds < 0.001) seconds = 0.001
            printf "%-28s %8.2f %10.1f %10.0f %10.2f %10.2f\n", label, seconds,
                bytes / seconds / 1048576, objects / seconds, cpu[1] + cpu[2], server / ticks
        }'
}

echo 'collecting files of this machine ...'
make_tree
bytes=$(find "$work/tree" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }')
objects=$(find "$work/tree" | wc -l)

mkdir "$work/export"
options=()
[[ $(id -u) != 0 ]] || options=(--no-root-squash)
"$dafs" serve "$work/export" --listen 127.0.0.1:0 --state-directory "$work/state" --log warn \
    ${options[@]+"${options[@]}"} >"$work/ready" &
server=$!
for _ in $(seq 200); do
    ! grep -q '^ready ' "$work/ready" || break
    kill -0 "$server" 2>/dev/null || { echo 'the server did not start'; exit 1; }
    sleep 0.05
done
url=$(sed -n 's/^ready //p' "$work/ready")
[[ $url ]] || { echo 'the server did not get ready within 10 s'; exit 1; }

printf '\n%d objects, %d MiB, server at %s\n\n' "$objects" "$((bytes >> 20))" "$url"
printf '%-28s %8s %10s %10s %10s %10s\n' copy seconds MiB/s objects/s 'CPU s' 'server CPU'
measure 'cp -a' cp -a "$work/tree" "$work/copy"
compare "$work/copy" 'cp -a'
for transport in shm iwarp; do
    measure "dafs put over $transport" \
        "$dafs" --transport "$transport" put "$work/tree" "${url}$transport"
    measure "dafs get over $transport" \
        "$dafs" --transport "$transport" get "${url}$transport" "$work/copy"
    compare "$work/export/$transport" "put over $transport"
    compare "$work/copy" "get over $transport"
done
measure 'cp -a again' cp -a "$work/tree" "$work/copy"
printf '\nall copies were compared: every byte, permission, time and symlink is the same\n\n'

kill -TERM "$server"
wait "$server"
server=
cat <<END
Try next, the first in one terminal and the others in another:
    $dafs serve crates --read-only
    $dafs ls -l dafs://localhost/dafs
    $dafs get dafs://localhost/dafs copy-of-dafs
END
