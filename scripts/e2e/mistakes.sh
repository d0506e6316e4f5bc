#!/bin/bash
# A wrong command line or configuration names the place and the remedy, and has exit status 2.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
here=$work/export

step "command lines"
expect 2 'Usage' "$dafs"
expect 2 "unrecognized subcommand 'sevre'" "$dafs" sevre
expect 2 'DIR' "$dafs" serve
expect 2 'HOST:PORT' "$dafs" serve "$here" --listen nowhere
expect 2 '1..=3600' "$dafs" serve "$here" --lease 0
expect 2 'make it first' "$dafs" serve "$work/missing"
expect 2 'means nothing to serve' "$dafs" serve "$here" --transport shm
expect 2 'does not start with dafs://' "$dafs" ls /etc
expect 2 'write dafs://HOST' "$dafs" ls dafs:///path
expect 2 'is not a port' "$dafs" ls dafs://host:x/
expect 2 'give it in a file' "$dafs" ls dafs://anna:secret@host/
expect 2 'DAFS_PASSWORD' "$dafs" ls dafs://localhost/ --user anna
expect 2 'leave one of them out' "$dafs" ls 'dafs://localhost/?fence-id=a' --fence-id b
expect 2 'leave one of them out' "$dafs" ls dafs://bert@localhost/ --user anna
expect 2 'different servers' "$dafs" mv dafs://localhost:1/a dafs://localhost:2/b
for command in get put cp mv; do
    expect 2 'the target is missing' "$dafs" "$command" dafs://localhost:1/a
done
expect 2 'for a symlink add -s' "$dafs" ln target dafs://localhost/link
expect 2 'octal' "$dafs" mkdir -m rwx dafs://localhost/x
expect 2 "has no ':'" "$dafs" passwd "$work/users" a:b --uid 1 --gid 1
expect 2 'is empty' "$dafs" passwd "$work/users" anna --uid 1 --gid 1
expect 0 'Serve directories' "$dafs" --help

step "configurations"
wrong() {
    cat >"$work/dafs.toml"
    expect 2 "$1" timeout 20 "$dafs" serve --config "$work/dafs.toml" --state-directory "$work/state"
    [[ $# == 1 ]] || grep -qF "$2" "$work/said" || { cat "$work/said"; fail "does not name $2"; }
}
export_table='[[export]]
name = "data"
path = "export"'
expect 2 'cannot read' "$dafs" serve --config "$work/missing.toml"
wrong 'name at least one' <<<''
wrong 'unknown field' 'line 2' <<END
# comment
lissten = ["127.0.0.1:0"]
$export_table
END
wrong 'HOST:PORT' 'line 3' <<END
# comment

listen = ["nowhere"]
$export_table
END
wrong 'use 1 to 3600' 'line 1' <<END
lease_time_seconds = 0
$export_table
END
wrong 'root, none or all' 'line 4' <<END
$export_table
squash = "most"
END
wrong 'make it first' 'line 6' <<END
$export_table
[[export]]
name = "other"
path = "missing"
END
wrong 'use at least 1' 'line 5' <<END
$export_table
[limits]
connections = 0
END
wrong '192.0.2.0/24' 'line 1' <<END
trusted = ["10/8"]
$export_table
END

step "password files"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
password_file = "users"
$export_table
END
start=("$dafs" serve --config "$work/dafs.toml" --state-directory "$work/state")
expect 2 'cannot read' "${start[@]}"
(umask 022 && echo '# users' >"$work/users")
expect 2 'chmod 600' "${start[@]}"
chmod 600 "$work/users"
echo 'anna:one:1::hash' >>"$work/users"
expect 2 'line 2' "${start[@]}"

step "a new password leaves the rest of a user as it is"
passwd=("$dafs" passwd "$work/others")
echo first | "${passwd[@]}" berta --uid 5 --gid 6 --groups 27,100
echo second | "${passwd[@]}" berta
grep -q '^berta:5:6:27,100:' "$work/others" || { cat "$work/others"; fail "the ids have changed"; }
echo third | "${passwd[@]}" berta --gid 7 --groups
grep -q '^berta:5:7::' "$work/others" || { cat "$work/others"; fail "the ids are not those of the options"; }
expect 2 'give --uid and --gid' "${passwd[@]}" carla --uid 5
