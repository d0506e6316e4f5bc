# shellcheck shell=bash
# Sourced by nfs.sh where the files of /data are spread over three data servers (LAB_LAYOUTS): the
# storage of such an export, and reads of the stored content that bypass the server.
#
# | LAB_LAYOUTS | storage of the files |
# |---|---|
# | stripes | three directories of this machine, in stripes of 64 KiB |
# | cephfs | the three storage daemons of a CephFS of its own, in objects of 64 KiB |
# | glusterfs | the three bricks of a GlusterFS volume of its own, whole |

# The engine's description of its cluster: a configuration, or an address.
cluster=''

# Starts the storage cluster of the export; skips the test where that is impossible.
start_cluster() {
    local program
    case $layouts in
    cephfs)
        for program in ceph-mon ceph-osd ceph-mds ceph; do
            command -v "$program" >/dev/null || skip "$program is not installed"
        done
        /usr/bin/python3 -c 'import cephfs' 2>/dev/null || skip "python3-cephfs is not installed"
        cluster=$("$lab/engines/cephfs.sh" start "$work/cluster")
        # Small units, so that a file soon lies on all nodes.
        ceph_client 'fs.mkdir("/a", 0o777)
fs.chmod("/a", 0o777)
fs.setxattr("/a", "ceph.dir.layout",
    b"stripe_unit=65536 stripe_count=1 object_size=65536 pool=data", 0)'
        ;;
    glusterfs)
        for program in glusterd glusterfsd gluster; do
            command -v "$program" >/dev/null || skip "$program is not installed"
        done
        [[ $(</proc/self/uid_map) =~ 4294967295$ ]] || skip "bricks need root"
        cluster=$("$lab/engines/glusterfs.sh" start "$work/cluster")
        ;;
    esac
}
stop_cluster() {
    case $layouts in
    cephfs | glusterfs) [[ ! $cluster ]] || "$lab/engines/$layouts.sh" stop "$work/cluster" ;;
    esac
}

# ceph_client CODE -- runs code with a client of CephFS, mounted as `fs`.
ceph_client() {
    timeout 60 /usr/bin/python3 - "$cluster" <<END
import cephfs, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.mount()
$1
fs.shutdown()
END
}

# spread_source -- the source of the export, for the configuration.
spread_source() {
    case $layouts in
    stripes) echo 'path = "export"' ;;
    *) echo "store = \"$layouts\"" ;;
    esac
}
# spread_parts -- its parts, for the configuration.
spread_parts() {
    local number
    case $layouts in
    stripes) echo 'stripe_bytes = 65536' ;;
    cephfs) printf '[export.ceph]\nconf = "%s"\nroot = "/a"\n' "$cluster" ;;
    glusterfs) printf '[export.gluster]\nvolume = "dist"\nservers = ["%s"]\n' "$cluster" ;;
    esac
    for number in 1 2 3; do
        case $layouts in
        stripes)
            mkdir -p "$work/disk$number"
            printf '[[export.node]]\nnumber = %d\npath = "disk%d"\n' "$number" "$number"
            ;;
        cephfs) printf '[[export.ceph.data_server]]\nosds = [%d]\n' $((number - 1)) ;;
        glusterfs)
            printf '[[export.gluster.data_server]]\nbrick = "%s.%d:%s/%d/brick"\n' \
                "${cluster%.1}" "$number" "$work/cluster" "$number"
            ;;
        esac
        echo "listen = \"$address:205$number\""
        [[ $transport == tcp ]] || echo "rdma_listen = \"$address:2105$number\""
    done
}

# stored -- the content of the only file there is, bypassing the server; empty if there is none. It
# is so short that it lies on one data server.
stored() {
    case $layouts in
    stripes) find "$work"/disk? -type f ! -name node ! -name incarnation -exec cat {} + ;;
    cephfs)
        ceph_client 'try:
    fd = fs.open("/a/file", "r")
    sys.stdout.buffer.write(fs.read(fd, 0, 65536))
    fs.close(fd)
except cephfs.ObjectNotFound:
    pass'
        ;;
    # A brick may have a link file, whose mark says that the file is on another brick.
    glusterfs) find "$work"/cluster/?/brick -maxdepth 1 -type f ! -perm -1000 -exec cat {} + ;;
    esac
}

# grants_delegations -- true if the server grants delegations for files that others than its clients
# can change.
grants_delegations() { [[ ! $layouts || $layouts == stripes ]]; }

# counts_space -- true if the store reports the used space.
counts_space() { [[ $layouts != cephfs ]]; }
