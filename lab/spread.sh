# shellcheck shell=bash
# Sourced by nfs.sh where the files of /data are spread over three data servers (LAB_LAYOUTS): what such an
# export is made of, and the look past the server at what is stored.
#
# | LAB_LAYOUTS | what the files are spread over |
# |---|---|
# | stripes | three directories of this machine, in stripes of 64 KiB |
# | cephfs | the three storage daemons of a CephFS of its own, in objects of 64 KiB |
# | glusterfs | the three bricks of a GlusterFS volume of its own, whole |

# What the engine says of its cluster: a configuration, or an address.
cluster=''

# Starts what the export is spread over; where that cannot be here, the test is skipped.
start_cluster() {
    local program
    case $layouts in
    cephfs)
        for program in ceph-mon ceph-osd ceph-mds ceph; do
            command -v "$program" >/dev/null || skip "$program is not installed"
        done
        /usr/bin/python3 -c 'import cephfs' 2>/dev/null || skip "python3-cephfs is not installed"
        cluster=$("$lab/engines/cephfs.sh" start "$work/cluster")
        # Small units, so that a file lies everywhere soon.
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

# ceph_client CODE -- a client of CephFS, that has mounted it as `fs`.
ceph_client() {
    timeout 60 /usr/bin/python3 - "$cluster" <<END
import cephfs, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.mount()
$1
fs.shutdown()
END
}

# spread_source -- what the export is, in words of the configuration.
spread_source() {
    case $layouts in
    stripes) echo 'path = "export"' ;;
    *) echo "store = \"$layouts\"" ;;
    esac
}
# spread_parts -- what it consists of.
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

# stored -- the content of the only file there is, without a word to the server; nothing if there is none.
# It is so short that it lies on one data server.
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
    # A brick may have a mark that says that the file is on another one.
    glusterfs) find "$work"/cluster/?/brick -maxdepth 1 -type f ! -perm -1000 -exec cat {} + ;;
    esac
}

# grants_delegations -- whether the server does, for files that others than its clients can change.
grants_delegations() { [[ ! $layouts || $layouts == stripes ]]; }

# counts_space -- whether anybody does.
counts_space() { [[ $layouts != cephfs ]]; }
