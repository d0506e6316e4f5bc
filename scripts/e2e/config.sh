#!/bin/bash
# The configuration file: a first one is made and is right, a check reads it as the server does without starting one,
# and each mistake is told with file, line and remedy.
source "$(dirname "$0")/lib.sh"

config=$work/etc/dafs.toml
step "a first file"
expect 0 'is made' "$dafs" config init "$config"
[[ $(stat -c '%a %U' "$config") == "644 $(id -un)" ]] || fail "the file is $(stat -c '%a %U' "$config")"
expect 1 'exists, and stays as it is' "$dafs" config init "$config"
"$dafs" config init - | cmp - "$config" || fail "another file is printed"
mkdir "$work/etc/export"
sed -i "s|/srv/projects|export|" "$config"
expect 0 'right, 1 export' "$dafs" config check "$config"
[[ $(ls -A "$work/etc") == $'dafs.toml\nexport' ]] || fail "the check has made files: $(ls -A "$work/etc")"
sed -i 's|20490|0|' "$config"
serve --config "$config"
"$dafs" ls "$url" >"$work/said" || fail "the first file serves nothing"
grep -qx projects "$work/said" || fail "the export is not there"
stop_server
expect 2 '/etc/dafs/dafs.toml, which' "$dafs" serve
expect 2 '`dafs config init FILE` makes one' "$dafs" config check "$work/missing.toml"

step "mistakes"
export_table='[[export]]
name = "data"
path = "export"'
# wrong LINE REMEDY -- the check and the server refuse the file on standard input, with these.
wrong() {
    cat >"$config"
    expect 2 "$2" timeout 20 "$dafs" config check "$config"
    grep -qF "$config" "$work/said" || { cat "$work/said"; fail "the file is not named"; }
    grep -q "line $1\b" "$work/said" || { cat "$work/said"; fail "line $1 is not named"; }
    expect 2 "$2" timeout 20 "$dafs" serve --config "$config" --state-directory "$work/state"
}
wrong 2 'unknown field `lissten`' <<<$'# text\nlissten = []\n'"$export_table"
wrong 1 'write a list in brackets' <<<$'listen = "127.0.0.1:1"\n'"$export_table"
wrong 1 'HOST:PORT' <<<$'listen = ["nowhere"]\n'"$export_table"
wrong 1 'password_file' <<<$'listen = ["0.0.0.0:0"]\n'"$export_table"
wrong 1 '[[export]]' <<<$'[export]\nname = "a"\npath = "export"'
wrong 1 'such as "30s"' <<<$'lease_time_seconds = "30 days"\n'"$export_table"
wrong 1 'use 1 to 3600' <<<$'lease_time_seconds = 0\n'"$export_table"
wrong 1 'such as "4MiB"' <<<$'optimistic_memory_bytes = "4MB"\n'"$export_table"
wrong 1 'without a unit' <<<$'threads = "4"\n'"$export_table"
wrong 1 'true or false' <<<$'crc = "yes"\n'"$export_table"
wrong 1 'adaptive' <<<$'wake = "often"\n'"$export_table"
wrong 1 '192.0.2.0/24' <<<$'trusted = ["10/8"]\n'"$export_table"
wrong 5 'use at least 1' <<<"$export_table"$'\n[limits]\nconnections = 0'
wrong 4 '"most" is unknown; use root, none or all' <<<"$export_table"$'\nsquash = "most"'
wrong 4 '"on" is unknown; use off, crash or power' <<<"$export_table"$'\ndurable_replies = "on"'
wrong 4 '"remote" for others' <<<"$export_table"$'\noptimistic = "everywhere"'
wrong 5 'give each its own name' <<<"$export_table"$'\n'"$export_table"
wrong 2 'cannot be the name of an export' <<<"${export_table/data/a/b}"
wrong 5 'an export without a name' <<<"$export_table"$'\n'"${export_table/data/}"
wrong 3 'make it first' <<<"${export_table/= \"export/= \"gone}"
wrong 3 'is not UTF-8' < <(printf '%s\n# caf\xe9\n' "${export_table%$'\n'*}")
wrong 1 'TOML' <<<$'listen = = 3\n'"$export_table"

step "units"
printf '%s\n' 'lease_time_seconds = "30s"' 'optimistic_memory_bytes = "4MiB"' "$export_table" >"$config"
expect 0 'right' "$dafs" config check "$config"

step "files that it names"
named() {
    cat >"$config"
    expect 2 "$1" timeout 20 "$dafs" config check "$config"
}
named "line 1: password_file: cannot read $work/etc/users: there is no such file; make it with: dafs passwd $work" <<<$'password_file = "users"\n'"$export_table"
echo '# users' >"$work/etc/users"
chmod 644 "$work/etc/users"
named 'chmod 600' <<<$'password_file = "users"\n'"$export_table"
chmod 600 "$work/etc/users"
expect 0 'right' "$dafs" config check "$config"
named "line 5: tls.certificate: cannot read $work/etc/server.pem" <<<"$export_table"$'\n[tls]\ncertificate = "server.pem"\nkey = "server-key.pem"'
named "line 5: kerberos.keytab: cannot read $work/etc/keytab: there is no such file; write it: kadmin ktadd" <<<"$export_table"$'\n[kerberos]\nkeytab = "keytab"'
chmod 666 "$config"
expect 2 'cannot trust the configuration' "$dafs" config check "$config"
chmod 644 "$config"

step "warnings"
# warned LINE REMEDY
warned() {
    cat >"$config"
    expect 0 "$2" "$dafs" config check "$config"
    grep -q "warning: $config line $1: " "$work/said" || { cat "$work/said"; fail "line $1 is not named"; }
    expect 1 "$2" "$dafs" config check --strict "$config"
}
warned 1 'metrics_transport_security' <<<$'metrics_listen = "0.0.0.0:9469"\n'"$export_table"
warned 4 'write networks' <<<$'[nfs]\nlisten = ["0.0.0.0:2049"]\n'"$export_table"
warned 1 'admits all of 10.0.0.0/8' <<<$'trusted = ["10.1.2.3/8"]\n'"$export_table"
warned 6 'is the directory of export "data"' <<<"$export_table"$'\n'"${export_table/data/other}"

step "the log marks mounts that are refused to other hosts"
closed=${export_table/data/closed}
printf '[nfs]\nlisten = ["0.0.0.0:0"]\n%s\nnetworks = ["192.0.2.0/24"]\n%s\n' "$export_table" "$closed" >"$config"
mkdir "$work/etc/other"
sed -i '$s/export/other/' "$config"
serve --config "$config" --listen 127.0.0.1:0
grep -q 'mount -t nfs .*/closed /mnt  # from this host alone$' "$log" || { cat "$log"; fail "a closed export is not marked"; }
grep -q 'mount -t nfs .*/data /mnt$' "$log" || { cat "$log"; fail "an open export is marked"; }
stop_server

step "commands find a server by its configuration"
printf 'listen = ["127.0.0.1:0"]\nstate_directory = "own-state"\n%s\n' "$export_table" >"$config"
serve --config "$config" --state-directory "$work/etc/own-state"
expect 0 '1 exports are served' "$dafs" reload --config "$config"
sed -i 's/listen/lissten/' "$config"
expect 2 'line 1' "$dafs" reload --config "$config"
stop_server
