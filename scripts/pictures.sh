#!/bin/bash
# pictures.sh [SECONDS] -- writes docs/pictures: the page of the administration port in both themes and narrow, and
# `dafs top`, of a server with a cluster, users and SECONDS of work (default: 300, as much as the page plots).
# `make pictures` builds what it needs, and calls it.
source "$(dirname "$0")/e2e/lib.sh"
seconds=${1:-300}
PICTURE_BYTES_MAX=150000
# Each kind of work lasts so long.
WORK_SECONDS=23
command -v chromium >/dev/null || fail "there is no chromium: scripts/setup.sh test installs it"

mkdir -m 777 "$work"/{names,projects,scratch,archive}
"$dafs" cluster init --secret "$work/secret"
for number in 1 2 3; do data "$number"; done
for user in alice bob carol; do
    echo secret | "$dafs" passwd "$work/users" "$user" --uid "$(id -u)" --gid "$(id -g)"
done
export_of() { printf '[[export]]\nname = "%s"\nsquash = "none"\nunprivileged_ports = true\npath = "%s"\n' "$@"; }
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
admin_listen = "127.0.0.1:0"
state_directory = "state"
password_file = "users"
trusted = []
[nfs]
listen = ["127.0.0.1:0"]
grace_time_seconds = 0
[cluster]
secret = "secret"
$(export_of projects projects)
$(export_of scratch scratch)
$(export_of archive archive)
read_only = true
$(export_of simulations names)
stripe_bytes = 65536
$(nodes 1 2 3)
END
serve --config "$work/dafs.toml"
nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
all_there() { "$dafs" cluster status --state-directory "$work/state"; }
eventually all_there

# client HOST ARGUMENTS... -- runs the command until the end of the script, on a host of that name if this user may make one.
# The browser and the server come first.
client() {
    local host=$1 there=()
    shift
    ! unshare --uts hostname "$host" 2>/dev/null || there=(unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host")
    DAFS_PASSWORD=secret nice -n 10 ${there[@]+"${there[@]}"} "$dafs" "$@" >"$work/client-$host" 2>&1 &
    started+=("$!")
}
# bench HOST KINDS [OPTION...] URL -- a client with these kinds of work, one after the other.
bench() {
    local host=$1 kinds=$2 run
    shift 2
    run=$kinds
    for ((at = 0; at < seconds / WORK_SECONDS + 1; at++)); do run+=,$kinds; done
    client "$host" "${@:1:$#-1}" bench --size 32m --depth 2 --seconds "$WORK_SECONDS" --run "$run" "${!#}"
}
as() { echo --transport iwarp --user "$1"; }
step "a server with work"
echo orders >"$work/orders"
# shellcheck disable=SC2046
{
    DAFS_PASSWORD=secret "$dafs" $(as carol) put "$work/orders" "$url/projects/orders.db"
    bench render-07 randread,seqread,randread,randwrite $(as alice) "$url/projects"
    bench build-02 seqwrite,randwrite,randread $(as bob) "$url/scratch"
    for host in db-01 db-02; do client "$host" $(as carol) lock hold "$url/projects/orders.db"; done
}
bench ws-114 randread,randwrite "nfs://$nfs/projects"
bench node-31 seqread,seqwrite,seqread "nfs://$nfs/simulations"

step "pictures, after $seconds s"
start_browser
mkdir "$work/pictures"
page=$(sed -n 's/.*administration at //p' "$log")/
python3 -B scripts/pictures.py "$browser_port" "$page" "$(cat "$work/state/admin-token")" "$seconds" "$work/pictures" \
    "$dafs" top --state-directory "$work/state" || {
    tail -n 20 "$work"/client-* "$work/browser.log" "$log"
    fail "there are no pictures"
}
large=$(find "$work/pictures" -size "+${PICTURE_BYTES_MAX}c")
[[ ! $large ]] || fail "over $PICTURE_BYTES_MAX bytes: $large"
mkdir -p docs/pictures
cp "$work"/pictures/*.png docs/pictures
ls -l docs/pictures

# It removes its files before its folder goes.
kill "$browser"
wait "$browser" || true
forget_process "$browser"
