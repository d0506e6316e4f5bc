#!/bin/bash
# A running server is administered: users come and go, a reload says of each changed key whether it is in force,
# and other machines do the same over HTTP with a token.
source "$(dirname "$0")/lib.sh"

uid=$(id -u) gid=$(id -g)
mkdir "$work/export"
chmod 777 "$work/export"
echo hello >"$work/export/file"
echo first | "$dafs" passwd "$work/users" anna --uid "$uid" --gid "$gid"
config() {
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
admin_listen = "127.0.0.1:0"
state_directory = "state"
password_file = "users"
trusted = []
$1
[[export]]
name = "data"
path = "export"
squash = "none"
$2
END
}
config '' ''
serve --config "$work/dafs.toml"
place=(--state-directory "$work/state")
reach() { DAFS_PASSWORD=$2 "$dafs" --transport iwarp --user "$1" cat "$url/data/file"; }
refused() { DAFS_PASSWORD=$2 expect 3 'not accepted' "$dafs" --transport iwarp --user "$1" cat "$url/data/file"; }
clients_of() { "$dafs" clients "${place[@]}" --json | grep -c "\"principal\":\"text $1\"" || true; }

step "a user is added while the server runs"
"$dafs" user add bert --uid "$uid" --gid "$gid" --generate "${place[@]}" >"$work/said"
password=$(sed -n 's/^password: //p' "$work/said")
[[ ${#password} == 24 ]] || { cat "$work/said"; fail "no password was made"; }
[[ $(reach bert "$password") == hello ]] || fail "the new user is refused"
! grep -D skip -rF "$password" "$work/users" "$log" "$work/state" || fail "the password is kept in clear text"
[[ $(stat -c %a "$work/users") == 600 ]] || fail "others can read the password file"
expect 1 'exists already' "$dafs" user add bert --uid 1 --gid 1 --generate "${place[@]}"
expect 2 'control characters' "$dafs" user add $'be\nrt' --uid 1 --gid 1 --generate "${place[@]}"
echo | expect 2 'is empty' "$dafs" user add carl --uid 1 --gid 1 "${place[@]}"

step "a user is changed"
echo second | "$dafs" user set anna --password "${place[@]}"
refused anna first
[[ $(reach anna second) == hello ]] || fail "the new password is refused"
"$dafs" user set anna --groups 7,8 "${place[@]}"
"$dafs" user list "${place[@]}" --json >"$work/said"
grep -q "{\"name\":\"anna\",\"uid\":$uid,\"gid\":$gid,\"groups\":\[7,8\]}" "$work/said" || { cat "$work/said"; fail "another user"; }
[[ $(reach anna second) == hello ]] || fail "the password went with the groups"
expect 2 'nothing is to change' "$dafs" user set anna "${place[@]}"
expect 1 'no user' "$dafs" user set carl --uid 1 "${place[@]}"

step "the clients of a removed user end"
[[ $(reach bert "$password") == hello ]] || fail "refused"
[[ $(clients_of bert) -ge 1 && $(clients_of anna) -ge 1 ]] || fail "no client is shown"
"$dafs" user remove bert "${place[@]}"
[[ $(clients_of bert) == 0 && $(clients_of anna) -ge 1 ]] || fail "other clients have ended"
refused bert "$password"
expect 1 'no user' "$dafs" user remove bert "${place[@]}"

step "changes outlive the server"
kill_server
serve --config "$work/dafs.toml"
refused bert "$password"
[[ $(reach anna second) == hello ]] || fail "the change is lost"

step "a reload says of each changed key whether it is in force"
config $'threads = 3\n[limits]\nconnections = 99' 'read_only = true'
echo third | "$dafs" passwd "$work/users" dora --uid "$uid" --gid "$gid"
"$dafs" reload "${place[@]}" >"$work/said"
for line in 'applied: export "data": read_only' 'applied: the users of password_file' \
    'refused: threads: .*, restart needed' 'refused: limits.connections: .*, restart needed' '1 exports are served'; do
    grep -q "^$line\$" "$work/said" || { cat "$work/said"; fail "not said: $line"; }
done
[[ $(reach dora third) == hello ]] || fail "a user of the file is refused after a reload"
"$dafs" reload "${place[@]}" >"$work/said"
grep -q '^refused: threads' "$work/said" || fail "a refused key is forgotten"
! grep '^applied' "$work/said" || fail "a key is applied twice"

step "a file that cannot be used changes nothing"
config '' 'read_only = "perhaps"'
expect 1 'line' "$dafs" reload "${place[@]}"
config '' ''
echo 'nonsense' >>"$work/users"
expect 1 'line 3' "$dafs" reload "${place[@]}"
DAFS_PASSWORD=second expect 1 'ROFS' "$dafs" --transport iwarp --user anna put "$work/dafs.toml" "$url/data/new"
expect 1 'line 3' "$dafs" user set anna --uid 1 "${place[@]}"
sed -i '$d' "$work/users"
"$dafs" reload "${place[@]}" >/dev/null
DAFS_PASSWORD=second "$dafs" --transport iwarp --user anna put "$work/dafs.toml" "$url/data/new"

step "the state of the server on one screen"
"$dafs" status "${place[@]}" >"$work/said"
grep -q "^dafs [0-9.]*, process $server, up " "$work/said" || { cat "$work/said"; fail "no first line"; }
grep -q ' /data$' "$work/said" || { cat "$work/said"; fail "no export"; }
"$dafs" status "${place[@]}" --json | grep "\"process\":$server," >/dev/null || fail "no JSON"

step "other programs administer it over HTTP"
admin=$(sed -n 's/.*administration at //p' "$log")
[[ $(stat -c %a "$work/state/admin-token") == 600 ]] || fail "others can read the token"
far=(--server "$admin" --token-file "$work/state/admin-token")
echo fourth | "$dafs" user add emil --uid "$uid" --gid "$gid" "${far[@]}"
[[ $(reach emil fourth) == hello ]] || fail "a user of another machine is refused"
"$dafs" reload "${far[@]}" | grep '1 exports are served' >/dev/null || fail "no reload"
"$dafs" clients "${far[@]}" >/dev/null
expect 1 'no client' "$dafs" expire 0123456789abcdef "${far[@]}"
DAFS_ADMIN_TOKEN=$(cat "$work/state/admin-token") "$dafs" status --server "$admin" >/dev/null
DAFS_ADMIN_TOKEN=wrong expect 1 '401' "$dafs" status --server "$admin"
expect 2 'no token' "$dafs" status --server "$admin"
expect 2 'clear text' "$dafs" status --server http://192.0.2.1:1 --token-file "$work/state/admin-token"
sed 's/^admin_listen.*/admin_listen = "0.0.0.0:0"/' "$work/dafs.toml" >"$work/open.toml"
expect 2 'write [tls]' "$dafs" config check "$work/open.toml"

step "bad requests are answered, and keep no administrator out"
python3 - "${admin#http://}" "$work/state/admin-token" <<'PYTHON' || { tail "$log"; fail "bad requests"; }
import json, socket, sys, time
host, port = sys.argv[1].rsplit(":", 1)
token = open(sys.argv[2]).read().strip()

def ask(head, content=b"", host_field="localhost"):
    """The status and the content of the answer to a request with these lines."""
    with socket.create_connection((host, int(port)), 20) as peer:
        lines = head.split("\n") + ([f"Host: {host_field}"] if host_field else [])
        lines += [f"Content-Length: {len(content)}"] if content else []
        try:
            peer.sendall("\r\n".join(lines + ["", ""]).encode() + content)
            answer = b"".join(iter(lambda: peer.recv(65536), b""))
        except ConnectionError:
            return None, b""
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]) if status else None, rest.partition(b"\r\n\r\n")[2]

right = f"Authorization: Bearer {token}"
status, content = ask(f"GET /v1/clients HTTP/1.1\n{right}")
assert status == 200 and "clients" in json.loads(content), (status, content)
for expected, head, content, name in [
    (401, "GET /v1/clients HTTP/1.1", b"", "localhost"),
    (401, "GET /v1/clients HTTP/1.1\nAuthorization: Bearer wrong", b"", "localhost"),
    (403, f"POST /v1/reload HTTP/1.1\n{right}\nOrigin: http://attacker.example", b"", "localhost"),
    (403, f"POST /v1/reload HTTP/1.1\n{right}\nSec-Fetch-Site: cross-site", b"", "localhost"),
    (403, f"POST /v1/reload HTTP/1.1\n{right}", b"", "attacker.example"),
    (400, f"POST /v1/reload HTTP/1.1\n{right}", b"", None),
    (400, f"POST /v1/reload HTTP/1.1\n{right}\nTransfer-Encoding: chunked", b"", "localhost"),
    (400, f"POST /v1/expire HTTP/1.1\n{right}", b"{", "localhost"),
    (404, f"POST /v2/reload HTTP/1.1\n{right}", b"", "localhost"),
    (405, f"GET /v1/reload HTTP/1.1\n{right}", b"", "localhost"),
    (422, f"POST /v1/expire HTTP/1.1\n{right}", b'{"client": 1}', "localhost"),
    (413, f"POST /v1/expire HTTP/1.1\n{right}\nContent-Length: 99999999", b"", "localhost"),
]:
    found = ask(head, content, name)
    assert found[0] == expected, (head, found)
status, _ = ask(f"GET /v1/clients HTTP/1.1\n{right}\nX: " + "x" * 100_000)
assert status in (431, None), status

# Silent peers end at the deadline, and slow ones too.
slow = [socket.create_connection((host, int(port)), 20) for _ in range(40)]
status, _ = ask(f"GET /v1/clients HTTP/1.1\n{right}")
assert status == 200, status
begin = time.time()
try:
    slow[-1].sendall(b"GET ")
    assert slow[-1].recv(1) == b""
except ConnectionError:
    pass
assert time.time() - begin < 15
for peer in slow:
    peer.close()

counts = {}
for number in range(10_000):
    status, _ = ask(f"POST /v1/reload HTTP/1.1\nAuthorization: Bearer {number}")
    counts[status] = counts.get(status, 0) + 1
    if number % 1000 == 0:
        assert ask(f"GET /v1/status HTTP/1.1\n{right}")[0] == 200
assert set(counts) <= {401, 429} and counts[429] > 1000, counts
PYTHON
lines=$(grep -c 'were refused: ' "$log")
[[ $lines -ge 1 && $lines -le 100 ]] || fail "$lines lines of the log about wrong tokens"
! grep -F "$(cat "$work/state/admin-token")" "$log" || fail "the token is in the log"
stop_server

step "without admin_listen there is no such port"
sed -i '/^admin_listen/d' "$work/dafs.toml"
serve --config "$work/dafs.toml"
! grep 'administration at' "$log" || fail "a port that nobody asked for"
stop_server

step "inside TLS"
"$dafs" pki init "$work/pki" >/dev/null
"$dafs" pki server "$work/pki" localhost >/dev/null
cat >>"$work/dafs.toml" <<END
[tls]
certificate = "pki/localhost.pem"
key = "pki/localhost-key.pem"
END
sed -i '1i admin_listen = "127.0.0.1:0"' "$work/dafs.toml"
serve --config "$work/dafs.toml"
admin=$(sed -n 's|.*administration at https://127.0.0.1||p' "$log")
far=(--server "https://localhost$admin" --token-file "$work/state/admin-token")
"$dafs" user list "${far[@]}" --authorities "$work/pki/ca.pem" | grep emil >/dev/null || fail "no answer inside TLS"
expect 2 'authorities' "$dafs" user list "${far[@]}"
"$dafs" pki init "$work/other" >/dev/null
expect 3 'no server answers' "$dafs" user list "${far[@]}" --authorities "$work/other/ca.pem"
expect 1 '' "$dafs" user list --server "http://localhost$admin" --token-file "$work/state/admin-token"
stop_server
