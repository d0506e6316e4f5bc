#!/bin/bash
# Users of a password file log in with their password and no other, and act with their own ids.
source "$(dirname "$0")/lib.sh"

uid=$(id -u) gid=$(id -g)
mkdir "$work/export"
echo hello >"$work/export/file"
echo secret | "$dafs" passwd "$work/users" anna --uid "$uid" --gid "$gid"
echo other | "$dafs" passwd "$work/users" bert --uid 4242 --gid 4242 --groups 7,8
[[ $(stat -c %a "$work/users") == 600 ]] || fail "others can read the password file"
! grep -q secret "$work/users" || fail "the password is in the file"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
password_file = "users"
trusted = []
[[export]]
name = "data"
path = "export"
squash = "none"
END
serve --config "$work/dafs.toml"
iwarp=("$dafs" --transport iwarp)

step "the right password, from the environment, a file, and with the name in the URL"
DAFS_PASSWORD=secret expect 0 file "${iwarp[@]}" --user anna ls "$url/data"
(umask 077 && printf 'secret\nmore\n' >"$work/password")
expect 0 hello "${iwarp[@]}" --user anna --password-file "$work/password" cat "$url/data/file"
DAFS_PASSWORD=secret expect 0 file "${iwarp[@]}" ls "${url/\/\//\/\/anna@}/data"

step "wrong ones"
DAFS_PASSWORD=Secret expect 3 'proof of identity was not accepted' \
    "${iwarp[@]}" --user anna ls "$url/data"
DAFS_PASSWORD=secret expect 3 'proof of identity was not accepted' \
    "${iwarp[@]}" --user nobody ls "$url/data"
for user in anna nobody; do
    grep -q "authentication failed.*user=$user failures=1" "$log" || { cat "$log"; fail "$user is not logged"; }
done

step "a user acts as the ids of the file"
DAFS_PASSWORD=secret expect 0 '' "${iwarp[@]}" --user anna mkdir "$url/data/mine"
[[ $(stat -c %u "$work/export/mine") == "$uid" ]] || fail "wrong owner"
if is_root; then
    DAFS_PASSWORD=other expect 1 'ACCES' "${iwarp[@]}" --user bert mkdir "$url/data/theirs"
    chmod 777 "$work/export"
    DAFS_PASSWORD=other expect 0 '' "${iwarp[@]}" --user bert mkdir "$url/data/theirs"
    [[ $(stat -c %u:%g "$work/export/theirs") == 4242:4242 ]] || fail "wrong owner"
fi

step "a changed password counts after a restart"
echo changed | "$dafs" passwd "$work/users" anna --uid "$uid" --gid "$gid"
[[ $(grep -c ^anna: "$work/users") == 1 ]] || fail "two lines for one user"
stop_server
serve --config "$work/dafs.toml"
DAFS_PASSWORD=secret expect 3 'not accepted' "${iwarp[@]}" --user anna ls "$url/data"
DAFS_PASSWORD=changed expect 0 file "${iwarp[@]}" --user anna ls "$url/data"
stop_server

step "a configuration, and the passwords that it names, come by pipes of the server's own user"
serve --config <(sed "s|\"users\"|\"$work/users\"|; s|\"export\"|\"$work/export\"|" "$work/dafs.toml")
DAFS_PASSWORD=changed expect 0 file "${iwarp[@]}" --user anna ls "$url/data"
stop_server
"$dafs" cluster init --secret "$work/secret" >/dev/null
expect 1 'cannot listen' timeout 20 "$dafs" serve --role data --control 203.0.113.1:1 --nfs 127.0.0.1:0 \
    --cluster-secret <(cat "$work/secret") "$work/export"

if is_root; then
    step "files that another user could change are not trusted"
    chmod 660 "$work/dafs.toml"
    expect 2 "chmod go-w $work/dafs.toml" timeout 20 "$dafs" serve --config "$work/dafs.toml"
    chmod 600 "$work/dafs.toml"
    chown 1234 "$work/dafs.toml"
    expect 2 "chown root $work/dafs.toml" timeout 20 "$dafs" serve --config "$work/dafs.toml"
    mkfifo "$work/fifo"
    expect 2 "$work/fifo is no regular file" timeout 20 "$dafs" serve --config "$work/fifo"
    printf '[gluster]\n' >"$work/engine.toml"
    chown 1234 "$work/engine.toml"
    expect 2 "chown root $work/engine.toml" timeout 20 "$dafs" serve --role data \
        --cluster-secret "$work/secret" --control 127.0.0.1:0 --nfs 127.0.0.1:0 --engine "$work/engine.toml" "$work/export"
fi

step "no umask closes a file to its owner"
(
    umask 0777
    echo secret | "$dafs" passwd "$work/masked" anna --uid 1 --gid 1
    "$dafs" cluster init --secret "$work/masked-secret" >/dev/null
)
[[ $(stat -c %a "$work/masked" "$work/masked-secret" | sort -u) == 600 ]] || fail "a file is closed to its owner"
