#!/bin/bash
# The page of the administration port in a browser: the token, plots and tables in both themes and on a phone, names
# that are HTML, a lost connection and a restart. DAFS_PICTURES=DIR keeps the pictures of the page there.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
chmod 777 "$work/export"
head -c 1000000 /dev/urandom >"$work/export/file"
user='<script>window.hostile = 1</script>'
echo secret | "$dafs" passwd "$work/users" "$user" --uid "$(id -u)" --gid "$(id -g)"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
admin_listen = "127.0.0.1:0"
state_directory = "state"
password_file = "users"
trusted = []
[[export]]
name = "data"
path = "export"
squash = "none"
END
serve --config "$work/dafs.toml"
page=$(sed -n 's/.*administration at //p' "$log")/
token=$(cat "$work/state/admin-token")

step "anyone gets the page, and nothing of the server in it"
ask() { curl --silent --show-error --noproxy '*' "$@"; }
ask --fail --dump-header "$work/head" --output "$work/page.html" "$page"
same crates/dafs-server/src/http/page.html "$work/page.html" "the page and its source"
for field in 'content-security-policy: default-src .none.; script-src .sha256-' 'cache-control: no-store' \
    'x-content-type-options: nosniff'; do
    grep -i "^$field" "$work/head" >/dev/null || { cat "$work/head"; fail "no $field"; }
done
grep "frame-ancestors 'none'" "$work/head" >/dev/null || fail "another page may frame it"
answer() { ask --output /dev/null --write-out '%{http_code}' "$@"; }
[[ $(answer "${page}favicon.ico") == 200 ]] || fail "no icon"
[[ $(answer "${page}v1/status") == 401 ]] || fail "the status without a token"
[[ $(answer --header 'Host: attacker.example' "$page") == 403 ]] || fail "a name of another host"
ask --fail --header "Authorization: Bearer $token" "${page}v1/status" |
    grep -F '"latency":[{"class":"read","total_microseconds":' >/dev/null || fail "no latency in the status"

command -v chromium >/dev/null || skip "there is no chromium: scripts/setup.sh test installs it"

step "in a browser"
start_browser
in_browser() {
    python3 scripts/e2e/page.py "$browser_port" "$@" || { tail -n 20 "$work/browser.log" "$log"; fail "the page: $1"; }
}

read_on() {
    while :; do
        DAFS_PASSWORD=secret "$dafs" --transport iwarp --user "$user" cat "$url/data/file" >/dev/null 2>&1 || true
        sleep 0.3
    done
}
read_on &
reader=$!
started+=("$reader")
pictures=${DAFS_PICTURES:-$work/pictures}
mkdir -p "$pictures"
in_browser look "$page" "$token" "$user" "$pictures"
[[ $(find "$pictures" -name '*.png' | wc -l) -ge 8 ]] || fail "pictures are missing"
kill "$reader"
wait "$reader" || true
forget_process "$reader"

step "the connection is lost, and the server comes back"
kill_server
in_browser lost
address=${page#http://}
sed -i "s|^admin_listen.*|admin_listen = \"${address%/}\"|" "$work/dafs.toml"
serve --config "$work/dafs.toml"
in_browser restarted
! grep -F "$token" "$log" "$work/server-1.log" || fail "the token is in a log"

# It removes its files before its folder goes.
kill "$browser"
wait "$browser" || true
forget_process "$browser"
stop_server
