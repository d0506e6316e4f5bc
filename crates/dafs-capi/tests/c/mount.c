/* mount.c URL -- files and names of an NFS server by all functions for mounts, and codes of errors. */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

/* More than one piece of a transfer. */
#define BYTES ((size_t)3000001)

static void files(dap_mount_t mount)
{
    const uint32_t all = DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE;
    unsigned char *data = malloc(BYTES), *back = malloc(BYTES);
    dap_attributes_t attributes;
    dap_mount_file_t file;
    size_t at;

    check(data && back);
    for (at = 0; at < BYTES; at++)
        data[at] = (unsigned char)(at * 7 + at / 251);
    check(dap_mount_open(mount, "dir/file", all | DAP_OPEN_EXCLUSIVE, 0640, &file) == 0);
    check(dap_mount_write(file, data, BYTES, 0, DAP_UNSTABLE) == (int64_t)BYTES);
    check(dap_mount_commit(file) == 0);
    check(dap_mount_fstat(file, &attributes) == 0);
    check(attributes.size == BYTES && attributes.kind == DAP_TYPE_FILE);
    check(attributes.mode == 0640 && attributes.links == 1);
    check(dap_mount_read(file, back, BYTES, 0) == (int64_t)BYTES);
    check(memcmp(data, back, BYTES) == 0);
    check(dap_mount_read(file, back, BYTES, BYTES - 10) == 10);
    check(memcmp(data + BYTES - 10, back, 10) == 0);
    check(dap_mount_read(file, back, 10, BYTES) == 0);
    check(dap_mount_read(file, back, 0, 0) == 0);
    check(dap_mount_write(file, "short", 5, 3, DAP_FILE_SYNC) == 5);
    check(dap_mount_read(file, back, 5, 3) == 5 && memcmp(back, "short", 5) == 0);
    check(dap_mount_read(file, NULL, 5, 3) == DAP_E_INVALID);
    check(dap_mount_read(file, (void *)4096, 5, 3) == DAP_E_FAULT);
    check(dap_mount_write(file, back, 5, 3, 7) == DAP_E_INVALID);
    check(dap_mount_write(file, back, 5, UINT64_MAX, DAP_UNSTABLE) < 0);
    check(dap_mount_close(file) == 0);
    check(dap_mount_close(file) == DAP_E_BAD_HANDLE);
    check(dap_mount_read(file, back, 5, 3) == DAP_E_BAD_HANDLE);

    check(dap_mount_open(mount, "dir/file", all | DAP_OPEN_EXCLUSIVE, 0640, &file) == DAP_E_EXIST);
    check(dap_mount_open(mount, "dir/none", DAP_OPEN_READ, 0, &file) == DAP_E_NOENT);
    check(dap_mount_open(mount, "dir/file", DAP_OPEN_DENY_READ | DAP_OPEN_READ, 0, &file) == DAP_E_INVALID);
    check(dap_mount_open(mount, "dir/file", 0, 0, &file) == DAP_E_INVALID);
    check(dap_mount_open(mount, "dir/file", DAP_OPEN_WRITE | DAP_OPEN_TRUNCATE, 0, &file) == 0);
    check(dap_mount_fstat(file, &attributes) == 0 && attributes.size == 0);
    check(dap_mount_close(file) == 0);
    free(data);
    free(back);
}

static void names(dap_mount_t mount)
{
    dap_attributes_t attributes;
    dap_mount_dir_t directory;
    dap_entry_t entry;
    int entries = 0;

    check(dap_mount_rename(mount, "dir/file", "dir/other") == 0);
    check(dap_mount_stat(mount, "dir/file", 0, &attributes) == DAP_E_NOENT);
    check(dap_mount_stat(mount, "dir/other", DAP_NO_FOLLOW, &attributes) == 0);
    check(dap_mount_stat(mount, "", 0, &attributes) == 0 && attributes.kind == DAP_TYPE_DIRECTORY);
    check(dap_mount_stat(mount, "dir", 99, &attributes) == DAP_E_INVALID);
    check(dap_mount_stat(mount, NULL, 0, &attributes) == DAP_E_INVALID);
    check(dap_mount_mkdir(mount, "dir/sub", 0750) == 0);
    check(dap_mount_mkdir(mount, "dir/sub", 0750) == DAP_E_EXIST);
    check(dap_mount_mkdir(mount, "dir/more", 010000) == DAP_E_INVALID);

    check(dap_mount_opendir(mount, "dir/other", &directory) == DAP_E_NOTDIR);
    check(dap_mount_opendir(mount, "dir", &directory) == 0);
    while (dap_mount_readdir(directory, &entry) == 1) {
        check(strcmp(entry.name, "other") == 0 || strcmp(entry.name, "sub") == 0);
        entries++;
    }
    check(entries == 2 && dap_mount_readdir(directory, &entry) == 0);
    check(dap_mount_closedir(directory) == 0);
    check(dap_mount_readdir(directory, &entry) == DAP_E_BAD_HANDLE);

    check(dap_mount_remove(mount, "dir/none") == DAP_E_NOENT);
    check(dap_mount_rmdir(mount, "dir") == DAP_E_NOTEMPTY);
    check(dap_mount_remove(mount, "dir/other") == 0);
    check(dap_mount_rmdir(mount, "dir/sub") == 0);
    check(dap_mount_rmdir(mount, "dir") == 0);
}

int main(int argc, char **argv)
{
    dap_mount_t mount, none = { 0 };
    dap_mount_file_t file;

    if (argc < 2)
        return 2;
    check(dap_mount(argv[1], &mount) == 0);
    check(dap_mount_mkdir(mount, "dir", 0755) == 0);
    files(mount);
    names(mount);

    /* A file goes on without the handle of its mount. */
    check(dap_mount_open(mount, "last", DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file) == 0);
    check(dap_unmount(mount) == 0);
    check(dap_mount_write(file, "x", 1, 0, DAP_FILE_SYNC) == 1);
    check(dap_mount_close(file) == 0);
    check(dap_unmount(mount) == DAP_E_BAD_HANDLE);
    check(dap_mount(argv[1], &mount) == 0);
    check(dap_mount_remove(mount, "last") == 0);
    check(dap_unmount(mount) == 0);
    check(dap_mount_mkdir(none, "x", 0) == DAP_E_BAD_HANDLE);

    check(dap_mount("http://localhost/", &mount) == DAP_E_URL);
    check(dap_mount("nfs://127.0.0.1:1/", &mount) == DAP_E_CONNECT);
    check(strstr(dap_last_error(), "127.0.0.1"));
    check(dap_mount(NULL, &mount) == DAP_E_INVALID);
    check(dap_mount(argv[1], NULL) == DAP_E_INVALID);
    printf("done\n");
    return 0;
}
