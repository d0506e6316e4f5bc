#!/bin/bash
# nfs-durable.sh -- a server with durable replies is killed in the middle of creates, renames and
# removals, and another process takes over from it: the kernel's client sees each of them happen once, and no
# answer is lost.
source "$(dirname "$0")/../nfs.sh"

[[ ${LAB_SERVER:-dafs} == dafs ]] || skip "other servers know nothing of this"
KILLS=6
[[ ! ${DAFS_TEST_LONG:-} ]] || KILLS=30
TAKE_OVERS=2
lease_seconds=5
# wait_for TEXT FILE, in a guest
wait_for='wait_for() { until grep -q "$1" "$2" 2>/dev/null; do read -r -t 0.05 -u 3 || true; done; }'
# shellcheck disable=SC2034
durable_replies=${LAB_DURABLE:-power}

serve
boot 1 2
for number in 1 2; do guest "$number" "nfs_mount ${versions[0]} a"; done

# start_load FOLDER -- four programs on each machine make, rename and remove files in folders of that name.
start_load() {
    local number
    for number in 1 2; do
        guest "$number" "folder=$1; $wait_for"'
            rm -f /tmp/churn-*
            churns=()
            for tag in 1 2 3 4; do
                fileop churn /mnt/a/$folder-$guest-$tag file >/tmp/churn-$tag & churns+=("$!")
            done
            for tag in 1 2 3 4; do wait_for begun /tmp/churn-$tag; done'
    done
}
# Ends them, and checks that each file is there once.
end_load() {
    local number
    for number in 1 2; do
        guest "$number" '
            ended=0
            kill "${churns[@]}" || ended=1
            for churn in "${churns[@]}"; do wait "$churn" || ended=1; done
            cat /tmp/churn-*
            [[ $ended == 0 ]]'
        guest "$number" '
            for tag in 1 2 3 4; do
                read -r rounds _ < <(grep rounds /tmp/churn-$tag)
                for ((i = 0; i < rounds; i += 10)); do echo file-$i; done | sort >/tmp/wanted
                ls /mnt/a/$folder-$guest-$tag | sort | diff /tmp/wanted -
            done'
    done
}

step "the server is killed $KILLS times"
start_load killed
for ((kill = 0; kill < KILLS; kill++)); do
    sleep "1.$((RANDOM % 10))"
    kill_server
    serve
    # The clients have to reconnect before the next one.
    sleep "$lease_seconds"
done
end_load
grep -h 'replies of the last run' "$work/server.log" | tail -n "$KILLS" | sed 's/.*journal=[^ ]* //'

[[ ! $server_guest && ! $layouts ]] || exit 0
step "another process takes over $TAKE_OVERS times"
start_load taken
for ((taken = 0; taken < TAKE_OVERS; taken++)); do
    sleep "1.$((RANDOM % 10))"
    take_over_server
    sleep "$lease_seconds"
done
end_load
