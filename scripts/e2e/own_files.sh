#!/bin/bash
# The server's own files: whatever its umask, other users of the host can neither write there nor
# read secrets. The server follows no symlink of theirs, and refuses places that are open to them
# with a remedy. Modes of clients' files do not depend on its umask. Damaged lists and marks are
# reported, and the printed remedy works.
source "$(dirname "$0")/lib.sh"

needs_users
mkdir -m 777 "$work/names"
mkdir "$work/data1" "$work/data2"
mkdir -m 777 "$work/others"
config() {
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
$1
[nfs]
listen = ["127.0.0.1:0"]
grace_time_seconds = 0
[[export]]
name = "wide"
path = "names"
squash = "none"
unprivileged_ports = true
stripe_bytes = 65536
$(printf '[[export.node]]\nnumber = %s\npath = "data%s"\n' 1 1 2 2)
END
}
config ''
wide() {
    umask "$1"
    serve --config "$work/dafs.toml"
    umask 022
    nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
}
mode() { stat -c %a "$1"; }

for mask in 000 077; do
    step "objects that clients make have their modes, with a server that was started with umask $mask"
    wide "$mask"
    [[ $(awk '/^Umask:/ { print $2 }' "/proc/$server/status") == 0077 ]] || fail "the umask of the server"
    for place in "$url" "nfs://$nfs"; do
        front=$mask-${place%%:*}
        "$dafs" mkdir -m 777 "$place/wide/open-$front"
        "$dafs" mkdir -m 3770 "$place/wide/group-$front"
        (umask 0 && head -c 200000 /dev/urandom >"$work/file-$front" && chmod 666 "$work/file-$front")
        "$dafs" put "$work/file-$front" "$place/wide/"
        [[ $(mode "$work/names/open-$front") == 777 ]] || fail "mkdir $front: $(mode "$work/names/open-$front")"
        [[ $(mode "$work/names/group-$front") == 3770 ]] || fail "set-gid $front: $(mode "$work/names/group-$front")"
        [[ $(mode "$work/names/file-$front") == 666 ]] || fail "put $front: $(mode "$work/names/file-$front")"
        "$dafs" rm "$place/wide/file-$front"
    done
    [[ $mask != 000 ]] || stop_server
done

head -c 300000 /dev/urandom >"$work/kept"
"$dafs" put "$work/kept" "$url/wide/"
step "nothing of the server's own is for others"
"$dafs" cluster drain --state-directory "$work/state" 2 >/dev/null
"$dafs" cluster drain --state-directory "$work/state" 2 --undo >/dev/null
open=$(find "$work/state" "$work"/data? -mindepth 1 \( -perm /077 -o -type l \) -printf '%m %P\n')
[[ ! $open ]] || fail "open to others: $open"

step "a list is not written through a symlink of another user"
echo precious >"$work/victim"
list=$(ls "$work"/state/nodes/*-leaving*)
for name in "$list" "$list.new" "${list%.*}.new" "${list%-*}-leaving.new"; do
    "${as_other[@]}" ln -sfn "$work/victim" "$name" 2>/dev/null || true
done
"$dafs" cluster drain --state-directory "$work/state" 2 >/dev/null || true
"$dafs" cluster drain --state-directory "$work/state" 2 --undo >/dev/null || true
[[ $(<"$work/victim") == precious ]] || fail "a file of root's was overwritten"

step "nor can another user make an entry, or damage a mark"
for place in "$work"/state/removed "$work"/state/removed/* "$work"/state/nodes "$work"/data1; do
    ! "${as_other[@]}" touch "$place/entry" 2>/dev/null || fail "another user has written to $place"
done
for place in "$work"/data1/incarnation "$work"/state/nodes/*-1; do
    ! "${as_other[@]}" sh -c 'echo x >>"$1"' - "$place" 2>/dev/null || fail "another user has written to $place"
done
stop_server

start=("$dafs" serve --config "$work/dafs.toml")
step "a damaged mark is told, and what is told helps"
memory=$(ls "$work"/state/nodes/*-1)
cp "$memory" "$work/memory"
for place in "$work/data1/incarnation" "$memory"; do
    # In the count, which could have any value.
    sed -i '2s/^0/9/' "$place"
    expect 1 "$place is damaged" "${start[@]}"
    grep -q 'copy' "$work/said" || fail "no remedy"
    cp "$work/memory" "$place"
done
wide 022
stop_server

step "each file of striped exports with each damage: told, or harmless"
cp -a "$work/state" "$work/whole"
marks=(data1/node data1/incarnation data2/incarnation)
tar -C "$work" -cf "$work/marks.tar" "${marks[@]}"
mapfile -t own < <(cd "$work" && find state/nodes state/removed state/moved state/mends "${marks[@]:0:2}" -type f)
[[ ${#own[@]} -ge 8 ]] || fail "there are ${#own[@]} such files: ${own[*]}"
for name in "${own[@]}"; do
    for how in removed emptied zeroed cut first middle last symlink; do
        damage "$how" "$work/$name"
        if starts; then
            rm -f "$work/back"
            "$dafs" get "$url/wide/kept" "$work/back" || fail "$name $how: it starts, and files are gone"
            same "$work/kept" "$work/back" "$name $how: a file"
            kill_server
        else
            tells_remedy "$work/$name" || fail "$name $how: not named, or without a remedy"
        fi
        is_untouched || fail "$name: a symlink was followed"
        rm -rf "$work/state"
        cp -a "$work/whole" "$work/state"
        tar -C "$work" --unlink-first -xf "$work/marks.tar"
    done
done

step "an entry of a list that the server did not write stops the start, and is not carried out"
for list in removed moved mends; do
    entry=$(find "$work/state/$list" -mindepth 1 -type d)/$(printf 'ab%.0s' {1..16})
    head -c 56 /dev/zero >"$entry"
    expect 1 "$entry" "${start[@]}"
    grep -q 'remove it' "$work/said" || fail "no remedy"
    rm "$entry"
done

step "lists of an earlier version are taken over once, and closed to others"
rm "$work"/state/{removed,moved,mends}/*.coded
list=$(ls "$work"/state/nodes/*-leaving.coded)
grep -v '^code ' "$list" >"${list%.coded}" || true
rm "$list"
sed -i '2s/ .*//' "$work"/data?/incarnation "$work"/state/nodes/*-[12]
chmod 666 "$work"/data?/incarnation "$work"/state/nodes/*
chmod 777 "$work"/state/{removed,moved,mends,nodes} "$work"/state/{removed,moved,mends}/*
planted=$(find "$work/state/removed" -mindepth 1 -type d)/$(printf 'cd%.0s' {1..16})
head -c 56 /dev/zero >"$planted"
chown daemon "$planted"
expect 1 "$planted" "${start[@]}"
rm "$planted"
wide 022
open=$(find "$work/state" "$work"/data? -mindepth 1 -perm /077 -printf '%m %P\n')
[[ ! $open ]] || fail "open to others: $open"
stop_server

step "what another user has put into a state directory is not used"
for name in clients.redb journal; do
    mv "$work/state/$name" "$work/aside" 2>/dev/null || true
    "${as_other[@]}" ln -s "$work/victim" "$work/others/link"
    mv "$work/others/link" "$work/state/$name"
    expect 2 "$work/state/$name is a symlink" "${start[@]}"
    rm "$work/state/$name"
    [[ ! -e $work/aside ]] || mv "$work/aside" "$work/state/$name"
done

step "directories that others may write to, or that belong to others, are refused"
for place in state data1; do
    status=1
    [[ $place != state ]] || status=2
    for wrong in 777 775; do
        chmod "$wrong" "$work/$place"
        expect "$status" "chmod go-w $work/$place" "${start[@]}"
    done
    chmod 755 "$work/$place"
    chown daemon "$work/$place"
    expect "$status" "chown root $work/$place" "${start[@]}"
    chown root "$work/$place"
done
"$dafs" cluster init --secret "$work/secret"
mkdir -m 777 "$work/node"
node=("$dafs" serve --role data --control 127.0.0.1:0 --nfs 127.0.0.1:0 --cluster-secret "$work/secret")
expect 1 "chmod go-w $work/node" "${node[@]}" "$work/node"

step "and so are secrets of others"
chmod 755 "$work/node"
chown daemon "$work/secret"
expect 2 "chown root $work/secret" "${node[@]}" "$work/node"
echo secret | "$dafs" passwd "$work/users" anna --uid 1 --gid 1
config 'password_file = "users"'
chown daemon "$work/users"
expect 2 "chown root $work/users" "${start[@]}"
# Lines of another user do not become root's.
add=(sh -c 'echo secret | "$0" passwd "$1" bert --uid 2 --gid 2' "$dafs")
expect 2 "chown root $work/users" "${add[@]}" "$work/users"
[[ $(stat -c %U "$work/users") == daemon ]] || fail "the file was taken over"
chown root "$work/users"
ln -s users "$work/users-link"
chown -h daemon "$work/users-link"
expect 2 "chown -h root $work/users-link" "${add[@]}" "$work/users-link"
wide 022
stop_server
