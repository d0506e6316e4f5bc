# shellcheck shell=bash
# Sourced by the end-to-end tests: a work folder that is removed, servers that end with the script,
# and functions that compare trees.
#
# Invariants
# * Only processes that were started here are ended, by their ids.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dafs=${DAFS:-$PWD/target/debug/dafs}
[[ -x $dafs ]] || { echo "there is no $dafs; build it with: cargo build"; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/dafs-e2e.XXXXXX")
chmod 755 "$work"
started=()
# Commands that undo changes of a test outside of its folder.
undo=()
cleanup() {
    local pid command
    for pid in ${started[@]+"${started[@]}"}; do kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for command in ${undo[@]+"${undo[@]}"}; do eval "$command" || true; done
    [[ $(id -u) == 0 ]] || chmod -R u+rwX "$work" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}
skip() {
    echo "$*"
    exit 77
}
step() { echo "--- $*"; }
is_root() { [[ $(id -u) == 0 ]]; }

# Waits until the command that follows succeeds. It ends a test that hangs after a minute, which a loaded machine needs.
eventually() {
    local tries=1200
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [[ $tries -gt 0 ]] || fail "never came true: $*"
        sleep 0.05
    done
}

# other_network -- makes a network namespace, which a process keeps until the script ends; sets
# `elsewhere` to that process.
other_network() {
    unshare -n sleep 10000 &
    elsewhere=$!
    started+=("$elsewhere")
    has_network() {
        local network
        network=$(readlink "/proc/$elsewhere/ns/net") && [[ $network != "$(readlink /proc/self/ns/net)" ]]
    }
    eventually has_network
}

# is_taken LOG -- true if a server has ended because its port is in use, and there are `tries` left;
# waits a moment then. While a server is down, the kernel gives its port to others, such as
# connections of this machine's own, and frees it a minute after the end of such a one.
is_taken() { [[ $tries -gt 0 ]] && grep -q 'Address already in use' "$1" && sleep 1; }

# serve ARGUMENTS... -- starts a server on a free port; sets url, server and log.
servers=0
serve() {
    local listen=(--listen 127.0.0.1:0) state=(--state-directory "$work/state")
    [[ " $* " != *' --listen '* && " $* " != *' --config '* ]] || listen=()
    [[ " $* " != *' --state-directory '* ]] || state=()
    is_ready() { grep -q '^ready ' "$log.out" || ! kill -0 "$server"; }
    local tries=90
    while :; do
        servers=$((servers + 1))
        log=$work/server-$servers.log
        "${as[@]+"${as[@]}"}" "$dafs" serve ${listen[@]+"${listen[@]}"} \
            ${state[@]+"${state[@]}"} "$@" >"$log.out" 2>"$log" &
        server=$!
        started+=("$server")
        eventually is_ready
        url=$(sed -n 's/^ready //p' "$log.out")
        [[ ! $url ]] || break
        tries=$((tries - 1))
        is_taken "$log" || { cat "$log"; fail "the server did not start: $*"; }
    done
    url=${url%/}
}

# one_export LINE... -- a configuration with a state directory, and one export of a new directory
# `export` with these lines.
one_export() {
    mkdir "$work/export"
    {
        printf '%s\n' 'listen = ["127.0.0.1:0"]' 'state_directory = "state"'
        printf '%s\n' '[[export]]' "$@"
    } >"$work/dafs.toml"
}

# For scripts that need several users: skips the test where that is impossible. Sets as_other, a
# prefix for commands.
needs_users() {
    is_root || skip "needs root, to be several users"
    command -v setpriv >/dev/null || skip "there is no setpriv (util-linux)"
    as_other=(setpriv --reuid daemon --regid daemon --clear-groups)
}

# flip FILE BYTE -- flips a bit of that byte.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# damage HOW FILE [OLDER [OTHER]] -- damages a file, or puts another one in its place.
damage() {
    local file=$2 size
    size=$(stat -c %s "$file")
    case $1 in
    removed) rm "$file" ;;
    emptied) truncate -s 0 "$file" ;;
    zeroed) truncate -s 0 "$file" && truncate -s "$size" "$file" ;;
    cut) truncate -s -1 "$file" ;;
    first) flip "$file" 0 ;;
    middle) flip "$file" $((size / 2)) ;;
    last) flip "$file" $((size - 1)) ;;
    older) cp -p "$3" "$file" ;;
    other) cp -p "$4" "$file" ;;
    symlink)
        cp -p "$file" "$work/linked.before"
        mv "$file" "$work/linked"
        ln -s "$work/linked" "$file"
        ;;
    *) fail "there is no damage $1" ;;
    esac
}

# True if a file behind a symlink of `damage symlink` is unchanged; removes it.
is_untouched() {
    [[ ! -e $work/linked ]] || cmp -s "$work/linked" "$work/linked.before" || return 1
    rm -f "$work/linked" "$work/linked.before"
}

# True if a server starts with `$work/dafs.toml`; sets url and server then. Otherwise `$work/said`
# is its output.
starts() {
    rm -f "$work/attempt"
    "$dafs" serve --config "$work/dafs.toml" >"$work/attempt" 2>"$work/said" &
    server=$!
    started+=("$server")
    has_decided() { grep -qs '^ready ' "$work/attempt" || ! kill -0 "$server"; }
    eventually has_decided
    url=$(sed -n 's/^ready //p' "$work/attempt")
    url=${url%/}
    [[ $url ]] || { wait "$server" || true; }
    [[ $url ]]
}

# tells_remedy FILE -- true if a server that did not start has named that file, and the remedy.
tells_remedy() {
    grep -qF "$1" "$work/said" && grep -qE 'accept-loss|remove|move it|copy' "$work/said" && return
    cat "$work/said"
    return 1
}

# Forgets a process that has ended and been waited for: its number may be reused by a process that
# is not ours.
forget_process() {
    local kept=() pid
    for pid in ${started[@]+"${started[@]}"}; do [[ $pid == "$1" ]] || kept+=("$pid"); done
    started=(${kept[@]+"${kept[@]}"})
}

# Starts a browser without a window; sets `browser` and `browser_port`, that of the Chrome DevTools Protocol.
start_browser() {
    # The only page that it opens is ours. Root, and hosts without user namespaces, have no sandbox for it.
    HOME=$work chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
        --disable-background-networking --disable-component-update --disable-sync --no-proxy-server \
        --remote-debugging-port=0 --user-data-dir="$work/browser" about:blank >"$work/browser.log" 2>&1 &
    browser=$!
    started+=("$browser")
    has_port() { [[ -s $work/browser/DevToolsActivePort ]] || ! kill -0 "$browser"; }
    eventually has_port
    browser_port=$(head -n 1 "$work/browser/DevToolsActivePort") ||
        { cat "$work/browser.log"; fail "the browser did not start"; }
}

# Ends the server in order.
stop_server() {
    local status=0
    kill -TERM "$server"
    wait "$server" || status=$?
    forget_process "$server"
    [[ $status == 0 ]] || { tail -n 20 "$log"; fail "the server ended with status $status"; }
}

# Ends it as a crash does.
kill_server() {
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    forget_process "$server"
}

# Options for `serve` that disable root squash, if this is root.
squash=()
! is_root || squash=(--no-root-squash)

# Runs this script from its beginning in a mount namespace of its own, so that its mounts are
# invisible outside and end with it.
in_own_mounts() {
    [[ ! ${DAFS_E2E_MOUNTS:-} ]] || return 0
    unshare -m true 2>/dev/null || skip "this user may not make a name space for mounts"
    rm -rf "$work"
    DAFS_E2E_MOUNTS=1 exec unshare -m --propagation private "$0"
}

# For scripts that mount a server's files: skips the test where that is impossible.
needs_mounts() {
    [[ -c /dev/fuse ]] || skip "there is no /dev/fuse: load the kernel's fuse module"
    is_root || skip "mounting needs root here"
    in_own_mounts
}

# For scripts that use `dafs run`: builds its library if it is missing.
needs_preload() {
    local library=${DAFS_PRELOAD_LIBRARY:-$(dirname "$(realpath "$dafs")")/libdafs_preload.so}
    [[ -f $library ]] || cargo build --locked -p dafs-preload || fail "$library cannot be built"
    [[ -f $library ]] || fail "there is no $library"
    export DAFS_PRELOAD_LIBRARY=$library
}

# own_cache TABLE WAY... -- makes a table of 4 MiB of Berkeley DB with the way (a command before a
# command), and reads all of it with caches of the database's own that are smaller, and larger.
own_cache() {
    local table=$1 records=4000
    shift
    if [[ ! -x $work/berkeley_db ]]; then
        cc -O2 -o "$work/berkeley_db" crates/dafs-bench/applications/berkeley_db.c -ldb-5.3 ||
            fail "the program does not compile; the library comes with: make setup"
    fi
    "$@" "$work/berkeley_db" make "$table" "$records" || fail "no table was made"
    for cache in 1 2000000 9000000; do
        "$@" "$work/berkeley_db" look "$table" "$records" "$cache" 3000 || fail "a record was not found"
        "$@" "$work/berkeley_db" scan "$table" "$records" "$cache" || fail "the records are not all there"
    done
    # It checks the records that it reads.
    "$@" "$work/berkeley_db" scan "$table" "$((records + 1))" 1 2>"$work/said" && fail "a missing record was found"
    grep -q 'the number of records' "$work/said" || { cat "$work/said"; fail "something else was wrong"; }
}

# The server's present counts, as one line.
counts() {
    local before
    before=$(grep -c ' counts connections=' "$log" || true)
    kill -USR1 "$server"
    has_more() { [[ $(grep -c ' counts connections=' "$log") -gt $before ]]; }
    eventually has_more
    grep ' counts connections=' "$log" | tail -n 1
}

# count NAME -- one of the server's counts.
count() { counts | sed -E "s/.* $1=([0-9]+).*/\1/"; }

# expect STATUS TEXT COMMAND... -- the command ends with that status and prints that text.
expect() {
    local wanted=$1 text=$2 status=0
    shift 2
    "$@" >"$work/said" 2>&1 </dev/null || status=$?
    [[ $status == "$wanted" ]] || { cat "$work/said"; fail "status $status, not $wanted: $*"; }
    [[ ! $text ]] || grep -qF -e "$text" "$work/said" || { cat "$work/said"; fail "does not say '$text': $*"; }
}

# example NAME PAGE -- the block behind the mark `<!-- example: NAME -->` in a page of documentation.
example() {
    awk -v mark="<!-- example: $1 -->" '$0 == mark { found = 1; next }
        found && /^```/ && lines { exit }
        found && !/^```/ { lines = 1; print }' "$2"
}

# application NAME WAY -- runs the example of docs/applications.md, in a new folder of the server
# `$url`, which exports `$export` and is mounted at `$point`. Sets folder.
application() {
    local commands home=$work/example
    folder=${1// /_}
    commands=$(example "$1, $2" "$here/docs/applications.md")
    [[ $commands ]] || fail "docs/applications.md has no example of $1, $2"
    step "the example of the documentation: $1"
    mkdir -p "$work/bin" "$home"
    ln -sf "$(realpath "$dafs")" "$work/bin/dafs"
    mkdir "$export/$folder"
    commands=${commands//dafs:\/\/localhost/$url/$folder}
    commands=${commands//\/mnt\/dafs/${point:-}/$folder}
    (
        cd "$home"
        PATH=$work/bin:$PATH HOME=$home bash -euo pipefail -c "${commands//\/tmp\/socket/$home/socket}"
    ) >"$work/said" 2>&1 || { cat "$work/said"; fail "a command of the example failed: $1"; }
    rm -rf "$home"
}

# One line for each object below $1, with all attributes that a copy must keep, except the time of
# access.
listing() {
    (
        cd "$1"
        find . \( -type d -printf '%y %m %U %G %T@ %P\0' \) -o \
            -printf '%y %m %n %s %U %G %T@ %l %P\0'
    ) | LC_ALL=C sort -z | tr '\n\0' '?\n'
}

# The times of access below $1. Reading them changes none, except those of directories afterwards.
access_times() {
    (cd "$1" && find . -printf '%A@ %P\0') | LC_ALL=C sort -z | tr '\n\0' '?\n'
}

# The names below $1 that belong to one file.
hard_links() {
    (cd "$1" && find . ! -type d -links +1 -printf '%i %P\0') | perl -0ne '
        chomp; my ($inode, $name) = split / /, $_, 2; push @{$names{$inode}}, $name;
        END { print map { "$_\n" } sort map { join "|", sort @$_ } values %names }'
}

# A checksum of all contents below $1, except of files named huge*.
contents() {
    (cd "$1" && find . -type f ! -name 'huge*' -print0 | LC_ALL=C sort -z | xargs -0 sha1sum) |
        sha1sum
}

# same FILE FILE WHAT
same() {
    cmp -s "$1" "$2" || { diff -a "$1" "$2" | head -n 20; fail "$3 differ"; }
}

# Checks that no unfinished file is left below $1.
no_parts() {
    local found
    found=$(find "$1" -name '.dafs-*.part')
    [[ ! $found ]] || fail "unfinished files were left: $found"
}

# data NUMBER [ARGUMENTS...] -- starts data server NUMBER of a cluster, again at its old address if
# it had one.
control=() data_server=() data_log=()
data() {
    local number=$1
    shift
    local arguments=("$@")
    [[ $# != 0 ]] || arguments=(--cluster-secret "$work/secret" "$work/data$number")
    mkdir -p "$work/data$number"
    data_log[number]=$work/data-$number.log
    data_ready() { grep -qs '^ready ' "${data_log[number]}.out" || ! kill -0 "${data_server[number]}"; }
    local place=${control[number]:-127.0.0.1:0} tries=90
    while :; do
        # The output of the last run must not be mistaken for that of this one.
        rm -f "${data_log[number]}.out"
        "$dafs" serve --role data --control "$place" --nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0 \
            --nfs-unprivileged-ports --metrics 127.0.0.1:0 "${arguments[@]}" \
            >"${data_log[number]}.out" 2>"${data_log[number]}" &
        data_server[number]=$!
        started+=("${data_server[number]}")
        eventually data_ready
        control[number]=$(sed -n 's/^ready //p' "${data_log[number]}.out")
        [[ ! ${control[number]} ]] || break
        tries=$((tries - 1))
        is_taken "${data_log[number]}" || { cat "${data_log[number]}"; fail "data server $number did not start"; }
    done
}
kill_data() {
    kill -9 "${data_server[$1]}"
    wait "${data_server[$1]}" 2>/dev/null || true
}

# nodes NUMBER... -- these data servers as the nodes of an export, for the configuration.
nodes() {
    local number
    for number in "$@"; do
        printf '[[export.node]]\nnumber = %s\ncontrol = "%s"\n' "$number" "${control[number]}"
    done
}

# counted LOG NAME -- a counter of the server with this log since its start, for all exports
# together.
counted() {
    local metrics line sum=0
    metrics=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$1")
    exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    while read -r line; do
        line=${line%$'\r'}
        [[ $line != "$2 "* && $line != "$2{"* ]] || sum=$((sum + ${line##* }))
    done <&3
    exec 3<&-
    echo "$sum"
}

# The READ requests of DAFS that the server with this log, `$log`, has answered since its start.
read_requests() {
    local address
    address=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
    exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    awk '/^dafs_operation_duration_seconds_count\{front_end="dafs",operation="READ_/ { sum += $2 }
        END { print sum + 0 }' <&3
    exec 3<&-
}
