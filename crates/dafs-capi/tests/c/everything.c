/* everything.c URL TRANSPORT -- each function of the library at work. */
#include <dafs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

#define RDWR (DAP_OPEN_READ | DAP_OPEN_WRITE)

static dap_session_t session;

static void too_long(void)
{
    char name[5 + 256 + 1] = "tree/", content[8];
    dap_attributes_t attributes;
    dap_dir_t directory;
    dap_file_t file;

    memset(name + 5, 'n', 256);
    expect(dap_stat(session, name, 0, &attributes), DAP_E_NAMETOOLONG);
    expect(dap_open(session, name, DAP_OPEN_READ, 0, &file), DAP_E_NAMETOOLONG);
    expect(dap_open(session, name, RDWR | DAP_OPEN_CREATE, 0600, &file), DAP_E_NAMETOOLONG);
    expect(dap_opendir(session, name, &directory), DAP_E_NAMETOOLONG);
    expect(dap_mkdir(session, name, 0755), DAP_E_NAMETOOLONG);
    expect(dap_rename(session, "tree/two", name), DAP_E_NAMETOOLONG);
    expect(dap_rename(session, name, "tree/two"), DAP_E_NAMETOOLONG);
    expect(dap_link(session, "tree/two", name), DAP_E_NAMETOOLONG);
    expect(dap_symlink(session, "two", name), DAP_E_NAMETOOLONG);
    expect(dap_remove(session, name), DAP_E_NAMETOOLONG);
    expect(dap_rmdir(session, name), DAP_E_NAMETOOLONG);
    expect(dap_create_file(session, name, 0600, "x", 1, 0), DAP_E_NAMETOOLONG);
    expect(dap_read_file(session, name, content, sizeof content), DAP_E_NAMETOOLONG);
    expect(dap_errno(DAP_E_NAMETOOLONG), ENAMETOOLONG);
}

static void names(void)
{
    dap_attributes_t attributes;
    dap_set_attributes_t change = { 0 };
    dap_fs_status_t status;
    dap_dir_t directory;
    dap_entry_t entry;
    dap_file_t file;
    char text[64];
    int entries = 0;

    expect(dap_mkdir(session, "tree", 0755), 0);
    expect(dap_mkdir(session, "tree", 0755), DAP_E_EXIST);
    expect(dap_errno(DAP_E_EXIST) != 0, 1);
    expect(dap_open(session, "tree/one", RDWR | DAP_OPEN_CREATE | DAP_OPEN_EXCLUSIVE, 0600, &file), 0);
    expect(dap_write(file, "0123456789", 10, 0, DAP_FILE_SYNC), 10);
    expect(dap_fstat(file, &attributes), 0);
    expect((int64_t)attributes.size, 10);
    expect(attributes.kind, DAP_TYPE_FILE);
    expect(attributes.mode, 0600);
    expect(dap_truncate(file, 4), 0);
    change.what = DAP_SET_MODE | DAP_SET_MODIFIED | DAP_SET_ACCESSED_NOW;
    change.mode = 0640;
    change.modified.seconds = 12345;
    expect(dap_fset_attributes(file, &change), 0);
    expect(dap_stat(session, "tree/one", 0, &attributes), 0);
    expect((int64_t)attributes.size, 4);
    expect(attributes.mode, 0640);
    expect(attributes.modified.seconds, 12345);
    change.what = 1u << 20;
    expect(dap_set_attributes(session, "tree/one", 0, &change), DAP_E_INVALID);
    change.what = DAP_SET_SIZE;
    change.size = 6;
    expect(dap_set_attributes(session, "tree/one", 0, &change), 0);
    expect(dap_close(file), 0);
    expect(dap_read_file(session, "tree/one", text, sizeof text), 6);
    expect(memcmp(text, "0123\0\0", 6), 0);
    expect(dap_read_file(session, "/tree/one", text, 3), 3);

    expect(dap_rename(session, "tree/one", "tree/two"), 0);
    expect(dap_stat(session, "tree/one", 0, &attributes), DAP_E_NOENT);
    expect(dap_link(session, "tree/two", "tree/three"), 0);
    expect(dap_symlink(session, "two", "tree/link"), 0);
    expect(dap_readlink(session, "tree/link", text, sizeof text), 3);
    expect(strcmp(text, "two"), 0);
    expect(dap_readlink(session, "tree/link", text, 3), DAP_E_SHORT);
    expect(dap_stat(session, "tree/link", DAP_NO_FOLLOW, &attributes), 0);
    expect(attributes.kind, DAP_TYPE_SYMLINK);
    expect(dap_stat(session, "tree/link", 0, &attributes), 0);
    expect(attributes.links, 2);
    expect(dap_access(session, "tree/two", DAP_ACCESS_READ), DAP_ACCESS_READ);
    expect(dap_statfs(session, "tree", &status), 0);
    expect(status.space_total > 0, 1);
    expect(dap_opendir(session, "tree", &directory), 0);
    while (dap_readdir(directory, &entry) == 1) {
        entries++;
        expect(entry.has_attributes, 1);
    }
    expect(entries, 3);
    expect(dap_closedir(directory), 0);
    expect(dap_rmdir(session, "tree"), DAP_E_NOTEMPTY);
    /* A slash behind a name demands a directory. */
    dap_attributes_t slashed;
    dap_file_t none;
    char content[8];
    expect(dap_stat(session, "tree/two/", 0, &slashed), DAP_E_NOTDIR);
    expect(dap_stat(session, "tree/two/.", 0, &slashed), DAP_E_NOTDIR);
    expect(dap_open(session, "tree/two/", DAP_OPEN_READ, 0, &none), DAP_E_NOTDIR);
    expect(dap_open(session, "tree/two/", RDWR | DAP_OPEN_CREATE, 0600, &none), DAP_E_ISDIR);
    expect(dap_open(session, "tree/none/", RDWR | DAP_OPEN_CREATE, 0600, &none), DAP_E_ISDIR);
    expect(dap_read_file(session, "tree/two/", content, sizeof content), DAP_E_NOTDIR);
    expect(dap_create_file(session, "tree/none/", 0600, "x", 1, 0), DAP_E_NOENT);
    expect(dap_remove(session, "tree/two/"), DAP_E_NOTDIR);
    expect(dap_rename(session, "tree/two/", "tree/other"), DAP_E_NOTDIR);
    expect(dap_rename(session, "tree/two", "tree/other/"), DAP_E_NOTDIR);
    expect(dap_link(session, "tree/two/", "tree/other"), DAP_E_NOTDIR);
    expect(dap_symlink(session, "two", "tree/other/"), DAP_E_NOENT);
    expect(dap_mkdir(session, "tree/slashed/", 0755), 0);
    expect(dap_rename(session, "tree/slashed/", "tree/other/"), 0);
    expect(dap_rmdir(session, "tree/other/"), 0);
    expect(dap_rmdir(session, "tree/two"), DAP_E_NOTDIR);
    expect(dap_remove(session, "tree"), DAP_E_ISDIR);
    /* A dot at its end names no entry. */
    expect(dap_mkdir(session, "tree/.", 0755), DAP_E_EXIST);
    expect(dap_mkdir(session, "tree/two/..", 0755), DAP_E_NOTDIR);
    expect(dap_link(session, "tree/two", "tree/.."), DAP_E_EXIST);
    expect(dap_symlink(session, "two", "tree/."), DAP_E_EXIST);
    expect(dap_create_file(session, "tree/.", 0600, "x", 1, 0), DAP_E_EXIST);
    expect(dap_remove(session, "tree/."), DAP_E_ISDIR);
    expect(dap_rmdir(session, "tree/.."), DAP_E_NOTEMPTY);
    expect(dap_rmdir(session, "tree/."), DAP_E_INVALID);
    expect(dap_rename(session, "tree/.", "other"), DAP_E_INVALID);
    expect(dap_rename(session, "tree/two", "tree/.."), DAP_E_INVALID);
    too_long();
    expect(dap_remove(session, "tree/two"), 0);
    expect(dap_remove(session, "tree/three"), 0);
    expect(dap_remove(session, "tree/link"), 0);
    expect(dap_rmdir(session, "tree"), 0);
}

static void data(dap_file_t file)
{
    static char mine[65536];
    dap_buffer_t buffer, lent;
    dap_group_t group;
    dap_completion_t done[4];
    uint64_t operation = 0, at = 0;
    size_t bytes;
    char *memory;
    void *address;
    int64_t count;

    expect(dap_buffer_alloc(session, 65536, &buffer, &address), 0);
    memory = address;
    expect(dap_buffer_memory(buffer, &address, &bytes), 0);
    expect(address == (void *)memory && bytes == 65536, 1);
    memset(memory, 'x', 65536);
    expect(dap_write_buffer(file, buffer, 0, 65536, 0, DAP_UNSTABLE), 65536);
    expect(dap_commit(file, 0, 0), 0);
    memset(memory, 0, 65536);
    expect(dap_read_buffer(file, buffer, 100, 1000, 5), 1000);
    expect(memory[99] == 0 && memory[100] == 'x' && memory[1099] == 'x' && memory[1100] == 0, 1);
    expect(dap_append(file, "end", 3, DAP_FILE_SYNC, &at), 0);
    expect((int64_t)at, 65536);
    expect(dap_append(file, "end", 3, DAP_UNSTABLE, NULL), DAP_E_INVALID);
    memcpy(memory + 7, "there", 5);
    expect(dap_append_buffer(file, buffer, 7, 5, DAP_DATA_SYNC, &at), 0);
    expect((int64_t)at, 65539);
    expect(dap_append_buffer(file, buffer, 7, 5, DAP_UNSTABLE, NULL), DAP_E_INVALID);
    expect(dap_append_buffer(file, buffer, 65530, 7, DAP_DATA_SYNC, NULL), DAP_E_INVALID);
    expect(dap_read(file, mine, 100, 65536), 8);
    expect(memcmp(mine, "endthere", 8), 0);

    expect(dap_lend(session, mine, sizeof mine, &lent), 0);
    expect(dap_read_buffer(file, lent, 0, 65536, 3), 65536);
    expect(memcmp(mine + 65533, "end", 3), 0);
    expect(dap_unregister(lent), 0);
    expect(dap_group_create(session, &group), 0);
    expect(dap_io_wait(group, done, 4, 1, 0), 0);
    memcpy(mine, "lent", 4);
    expect(dap_async_write_memory(group, 1, file, mine, 4, 0, DAP_DATA_SYNC, &operation), 0);
    expect(dap_io_wait(group, done, 4, SIZE_MAX, 60000), 1);
    expect(done[0].result == 4 && done[0].user_data == 1 && done[0].operation == operation, 1);
    expect(dap_async_read_memory(group, 2, file, mine + 100, 4, 0, NULL), 0);
    expect(dap_async_commit(group, 3, file, 0, 0, NULL), 0);
    expect(dap_io_in_flight(group) <= 2, 1);
    for (count = 0; count < 2;)
        count += dap_io_wait(group, done + count, 1, 1, 60000);
    expect(done[0].result + done[1].result, 4);
    expect(memcmp(mine + 100, "lent", 4), 0);
    expect(dap_async_append(group, 5, file, buffer, 7, 5, DAP_FILE_SYNC, &operation), 0);
    expect(dap_io_wait(group, done, 4, SIZE_MAX, 60000), 1);
    expect(done[0].result == 65544 && done[0].user_data == 5 && done[0].operation == operation, 1);
    expect(dap_async_append_memory(group, 6, file, mine, 4, DAP_DATA_SYNC, NULL), 0);
    expect(dap_io_wait(group, done, 4, SIZE_MAX, 60000), 1);
    expect(done[0].result, 65549);
    expect(dap_read(file, mine + 200, 100, 65544), 9);
    expect(memcmp(mine + 200, "therelent", 9), 0);
    expect(dap_async_append(group, 7, file, buffer, 7, 5, DAP_UNSTABLE, NULL), DAP_E_INVALID);
    expect(dap_async_append(group, 7, file, buffer, 65530, 7, DAP_FILE_SYNC, NULL), DAP_E_INVALID);
    expect(dap_async_append_memory(group, 7, file, NULL, 4, DAP_FILE_SYNC, NULL), DAP_E_INVALID);
    expect(dap_forget_memory(session, mine, sizeof mine), 0);
    /* A read behind the end returns 0. */
    expect(dap_async_read(group, 4, file, buffer, 0, 10, 1 << 30, &operation), 0);
    expect(dap_flush(session), 0);
    while ((count = dap_io_poll(group, done, 4)) == 0)
        ;
    expect(count == 1 && done[0].result == 0, 1);
    expect(dap_io_cancel(group, operation), 1);
    expect(dap_prefetch(file, 0, 4096) <= 0, 1);
    expect(dap_hint(file, 0, 0, DAP_PATTERN_SEQUENTIAL, DAP_HINT_CACHED), 0);
    expect(dap_set_hint(file, DAP_HINT_AGAIN), 0);
    expect(dap_group_free(group), 0);
    expect(dap_unregister(buffer), 0);
}

/* Small files in one round trip each. */
static void whole_files(const char *url)
{
    static const char content[] = "a small file";
    static char large[100000];
    dap_stats_t before, after;
    dap_attributes_t attributes;
    dap_session_t inside;
    char text[64], where[1024];

    expect(dap_mkdir(session, "files", 0755), 0);
    snprintf(where, sizeof where, "%s%sfiles", url, url[strlen(url) - 1] == '/' ? "" : "/");
    expect(dap_connect(where, NULL, &inside), 0);
    expect(dap_stats(inside, &before), 0);
    expect(dap_create_file(inside, "small", 0640, content, sizeof content, DAP_FILE_SYNC), 0);
    expect(dap_read_file(inside, "small", text, sizeof text), sizeof content);
    expect(dap_stats(inside, &after), 0);
    /* OPEN, WRITE and CLOSE; LOOKUP and READ. */
    expect((int64_t)(after.answered - before.answered), 5);
    expect(memcmp(text, content, sizeof content), 0);
    expect(dap_stat(session, "files/small", 0, &attributes), 0);
    expect(attributes.mode, 0640);
    expect(dap_create_file(inside, "small", 0640, content, 1, DAP_UNSTABLE), DAP_E_EXIST);
    expect(dap_create_file(inside, "none", 010000, content, 1, DAP_UNSTABLE), DAP_E_INVALID);
    expect(dap_create_file(inside, "none", 0640, NULL, 1, DAP_UNSTABLE), DAP_E_INVALID);
    expect(dap_create_file(inside, "none", 0640, content, 1, 3), DAP_E_INVALID);
    expect(dap_create_file(inside, "gone/none", 0640, content, 1, 0), DAP_E_NOENT);
    memset(large, 'l', sizeof large);
    expect(dap_create_file(session, "files/large", 0600, large, sizeof large, DAP_UNSTABLE), 0);
    memset(large, 0, sizeof large);
    expect(dap_read_file(inside, "../files/large", large, sizeof large), sizeof large);
    expect(large[0] == 'l' && memcmp(large, large + 1, sizeof large - 1) == 0, 1);
    expect(dap_create_file(session, "files/empty", 0600, NULL, 0, DAP_UNSTABLE), 0);
    expect(dap_read_file(inside, "empty", text, sizeof text), 0);
    expect(dap_disconnect(inside), 0);
    expect(dap_remove(session, "files/small"), 0);
    expect(dap_remove(session, "files/large"), 0);
    expect(dap_remove(session, "files/empty"), 0);
    expect(dap_rmdir(session, "files"), 0);
}

static void batches(dap_file_t file)
{
    dap_buffer_t buffer;
    dap_batch_t batch;
    dap_group_t group;
    dap_completion_t done[4];
    void *address;
    char *memory;
    dap_range_t ranges[2] = { { 0, 10 }, { 1000, 20 } };
    dap_piece_t pieces[2];
    uint64_t user_data[2] = { 11, 22 }, operations[2];
    int64_t results[2];

    expect(dap_buffer_alloc(session, 4096, &buffer, &address), 0);
    memory = address;
    memset(memory, 'b', 30);
    pieces[0] = (dap_piece_t){ buffer, 0, 15 };
    pieces[1] = (dap_piece_t){ buffer, 15, 15 };
    expect(dap_batch_create(session, &batch), 0);
    expect(dap_batch_write(batch, file, ranges, 2, pieces, 2), 0);
    expect(dap_batch_run(batch, results), 0);
    expect(results[0], 30);
    expect(dap_batch_run(batch, results), DAP_E_BAD_HANDLE);
    expect(dap_commit(file, 0, 0), 0);

    memset(memory, 0, 4096);
    expect(dap_group_create(session, &group), 0);
    expect(dap_batch_create(session, &batch), 0);
    expect(dap_batch_window(batch, 1000, 1), 0);
    pieces[0] = (dap_piece_t){ buffer, 100, 30 };
    expect(dap_batch_read(batch, file, ranges, 2, pieces, 1), 0);
    pieces[0] = (dap_piece_t){ buffer, 200, 10 };
    expect(dap_batch_read(batch, file, ranges, 1, pieces, 1), 1);
    expect(dap_batch_submit(batch, group, user_data, operations), 0);
    expect(dap_io_expedite(group, operations[0]), 0);
    expect(dap_io_wait(group, done, 4, SIZE_MAX, 60000), 2);
    expect(done[0].result + done[1].result, 40);
    expect(memory[100] == 'b' && memory[129] == 'b' && memory[200] == 'b' && memory[210] == 0, 1);
    expect(dap_group_free(group), 0);
    expect(dap_unregister(buffer), 0);
}

/* Completions after the timeout of a wait, and cancelled operations. */
static void waits(dap_file_t file)
{
    enum { TRANSFERS = 3000, LONG = 9 * 1000 * 1000 };
    static dap_completion_t done[TRANSFERS];
    static uint64_t user_data[TRANSFERS], operations[TRANSFERS];
    dap_buffer_t buffer;
    dap_batch_t batch;
    dap_group_t group;
    void *address;
    dap_range_t range = { 0, 16 };
    dap_piece_t piece;
    int64_t over = 0, told = 0, got, at, count;

    expect(dap_buffer_alloc(session, TRANSFERS * 16, &buffer, &address), 0);
    expect(dap_group_create(session, &group), 0);

    /* The server may take seconds for it, unless it is expedited. */
    expect(dap_batch_create(session, &batch), 0);
    expect(dap_batch_window(batch, LONG, 0), 0);
    piece = (dap_piece_t){ buffer, 0, 16 };
    expect(dap_batch_read(batch, file, &range, 1, &piece, 1), 0);
    user_data[0] = 5;
    expect(dap_batch_submit(batch, group, user_data, operations), 0);
    expect(dap_io_wait(group, done, 1, 1, 20), DAP_E_TIMED_OUT);
    expect(dap_io_poll(group, done, 1), 0);
    expect(dap_io_in_flight(group), 1);
    /* The completions that have come by the timeout are returned, though not all have. */
    expect(dap_async_read(group, 6, file, buffer, 16, 16, 0, NULL), 0);
    expect(dap_io_wait(group, done, 2, 2, 1000), 1);
    expect(done[0].user_data == 6 && done[0].result == 16, 1);
    expect(dap_io_expedite(group, operations[0]), 0);
    expect(dap_io_wait(group, done, 2, SIZE_MAX, -1), 1);
    expect(done[0].user_data == 5 && done[0].result == 16, 1);

    /* The server takes out what waits for its window. */
    expect(dap_batch_create(session, &batch), 0);
    expect(dap_batch_window(batch, LONG, 0), 0);
    expect(dap_batch_read(batch, file, &range, 1, &piece, 1), 0);
    expect(dap_batch_submit(batch, group, user_data, operations), 0);
    expect(dap_io_wait(group, done, 1, 1, 20), DAP_E_TIMED_OUT);
    expect(dap_io_cancel(group, operations[0]), 0);
    expect(dap_io_wait(group, done, 1, 1, -1), 1);
    expect(done[0].user_data == 5 && done[0].result == DAP_E_CANCELED, 1);

    /* More than the session sends at a time: the rest never gets there. */
    expect(dap_batch_create(session, &batch), 0);
    expect(dap_batch_window(batch, LONG, 0), 0);
    for (at = 0; at < TRANSFERS; at++) {
        piece = (dap_piece_t){ buffer, (uint64_t)at * 16, 16 };
        expect(dap_batch_read(batch, file, &range, 1, &piece, 1), at);
        user_data[at] = (uint64_t)at;
    }
    expect(dap_batch_submit(batch, group, user_data, operations), 0);
    for (at = TRANSFERS - 1; at >= 0; at--)
        over += dap_io_cancel(group, operations[at]);
    for (at = 0; at < TRANSFERS; at++)
        expect(dap_io_expedite(group, operations[at]), 0);
    for (got = 0; got < TRANSFERS; got += count) {
        count = dap_io_wait(group, done, TRANSFERS, 1, -1);
        expect(count > 0, 1);
        for (at = 0; at < count; at++) {
            expect(done[at].result == 16 || done[at].result == DAP_E_CANCELED, 1);
            told += done[at].result == DAP_E_CANCELED;
        }
    }
    /* Those that the client had not sent were over at once, and the server took out others. */
    expect(over > 0 && told > 0, 1);
    expect(dap_group_free(group), 0);
    expect(dap_unregister(buffer), 0);
}

static void chains(dap_file_t file)
{
    dap_file_t found = { 0 };
    dap_chain_t chain;
    dap_attributes_t attributes;
    dap_file_t other;
    char text[16];
    static int64_t many[4096];
    int64_t results[5];

    /* A directory, and a lookup and attributes of a file in it. */
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_mkdir(chain, "chained", 0, 0755), 0);
    expect(dap_chain_mkdir(chain, "below", DAP_CHAIN_FOUND, 0700), 1);
    expect(dap_chain_stat(chain, &attributes), 2);
    expect(dap_chain_run(chain, results), 0);
    expect(results[0] == 0 && results[1] == 0 && results[2] == 0, 1);
    expect(attributes.kind == DAP_TYPE_DIRECTORY && attributes.mode == 0700, 1);
    expect(dap_chain_run(chain, results), DAP_E_BAD_HANDLE);
    expect(dap_create_file(session, "chained/file", 0640, "0123456789", 10, DAP_FILE_SYNC), 0);
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_lookup(chain, "chained/file", 0), 0);
    expect(dap_chain_access(chain, DAP_ACCESS_READ | DAP_ACCESS_EXECUTE), 1);
    expect(dap_chain_stat(chain, &attributes), 2);
    expect(dap_chain_read(chain, found, text, sizeof text, 2), 3);
    expect(dap_chain_run(chain, results), 0);
    expect(results[1] & DAP_ACCESS_READ, DAP_ACCESS_READ);
    expect((int64_t)attributes.size, 10);
    expect(results[3], 8);
    expect(memcmp(text, "23456789", 8), 0);

    /* Under a lock, and on the object found. */
    expect(dap_open(session, "chained/file", RDWR, 0, &other), 0);
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_lock(chain, other, 0, 4, DAP_LOCK_EXCLUSIVE), 0);
    expect(dap_chain_write(chain, other, "xy", 2, 1, DAP_FILE_SYNC), 1);
    expect(dap_chain_read(chain, other, text, 4, 0), 2);
    expect(dap_chain_unlock(chain, other, 0, 4), 3);
    expect(dap_chain_run(chain, results), 0);
    expect(results[0] == 0 && results[1] == 2 && results[2] == 4 && results[3] == 0, 1);
    expect(memcmp(text, "0xy3", 4), 0);

    /* Requests behind a failure are not executed. */
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_lookup(chain, "chained", 0), 0);
    expect(dap_chain_lookup(chain, "none", DAP_CHAIN_FOUND), 1);
    expect(dap_chain_remove(chain, "chained", 0), 2);
    expect(dap_chain_run(chain, results), 0);
    expect(results[1], DAP_E_NOENT);
    expect(results[2], DAP_E_CHAIN);

    /* Invalid chains. */
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_stat(chain, &attributes), 0);
    expect(dap_chain_run(chain, results), DAP_E_INVALID);
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_read(chain, file, text, 1, 0), 0);
    expect(dap_chain_write(chain, file, "a", 1, 0, DAP_FILE_SYNC), 1);
    expect(dap_chain_run(chain, results), DAP_E_INVALID);
    expect(dap_chain_create(session, &chain), 0);
    for (int at = 0; at < 4096; at++)
        expect(dap_chain_lookup(chain, "data", 0), at);
    expect(dap_chain_lookup(chain, "data", 0), DAP_E_TOO_MANY);
    expect(dap_chain_run(chain, many), DAP_E_CHAIN);

    /* A file that is closed before the chain is run. */
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_read(chain, other, text, 4, 0), 0);
    expect(dap_close(other), 0);
    expect(dap_chain_run(chain, results), DAP_E_BAD_HANDLE);

    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_lookup(chain, "chained", 0), 0);
    expect(dap_chain_remove(chain, "below", DAP_CHAIN_FOUND), 1);
    expect(dap_chain_lookup(chain, "chained", 0), 2);
    expect(dap_chain_remove(chain, "file", DAP_CHAIN_FOUND), 3);
    expect(dap_chain_remove(chain, "chained", 0), 4);
    expect(dap_chain_run(chain, results), 0);
    expect(results[4], 0);
}

static void locks(dap_file_t file)
{
    dap_lock_holder_t holder = { 0 };
    dap_file_t second;

    expect(dap_open(session, "data", RDWR, 0, &second), 0);
    expect(dap_lock(file, 10, 10, DAP_LOCK_EXCLUSIVE, 0, NULL), 0);
    expect(dap_test_lock(second, 0, DAP_TO_END, 0, &holder), 1);
    expect(holder.offset == 10 && holder.length == 10 && holder.exclusive == 1, 1);
    expect(dap_lock(second, 15, 1, 0, 0, &holder), DAP_E_LOCK_HELD);
    expect(dap_lock(second, 15, 1, 0, 20, NULL), DAP_E_LOCK_HELD);
    /* A call that would wait for ever ends with the timeout of the thread. */
    dap_limit_thread(20);
    expect(dap_lock(second, 15, 1, 0, -1, NULL) < 0, 1);
    dap_limit_thread(-1);
    expect(dap_lock(second, 20, 1, DAP_LOCK_EXCLUSIVE, 0, NULL), 0);
    expect(dap_unlock(file, 10, 10), 0);
    expect(dap_lock(second, 15, 1, 0, -1, NULL), 0);
    expect(dap_close(second), 0);
    expect(dap_test_lock(file, 0, DAP_TO_END, DAP_LOCK_EXCLUSIVE, NULL), 0);

    expect(dap_lock_for_repair(file, 0, DAP_TO_END), DAP_E_INVAL);
    expect(dap_lock(file, 0, DAP_TO_END, DAP_LOCK_EXCLUSIVE | DAP_LOCK_AUTO_RECOVERY, 0, NULL), 0);
    expect(dap_write(file, "undone", 6, 0, DAP_FILE_SYNC), 6);
    expect(dap_abort_lock(file), 0);
    char text[6];
    expect(dap_read(file, text, 6, 0), 6);
    expect(memcmp(text, "undone", 6) != 0, 1);
}

/* A holder of a persistent lock fails, and its data is repaired. */
static void broken_locks(const char *url, dap_options_t options)
{
    dap_lock_holder_t holder = { 0 };
    dap_session_t again;
    dap_file_t file, other;
    char text[4];
    int status;
    pid_t child;

    options.client_id = "a client that fails";
    expect(dap_create_file(session, "kept", 0644, "half", 4, DAP_FILE_SYNC), 0);
    expect(dap_open(session, "kept", RDWR, 0, &file), 0);
    child = fork();
    if (child == 0) {
        dap_session_t mine;
        dap_file_t locked;
        expect(dap_connect(url, &options, &mine), 0);
        expect(dap_open(mine, "kept", RDWR, 0, &locked), 0);
        expect(dap_lock(locked, 0, 100, DAP_LOCK_EXCLUSIVE | DAP_LOCK_PERSIST, 0, NULL), 0);
        expect(dap_unlock(locked, 0, 50), DAP_E_LOCK_RANGE);
        _exit(0);
    }
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    /* It may still come back. */
    expect(dap_lock(file, 0, 100, DAP_LOCK_EXCLUSIVE, 0, &holder), DAP_E_LOCK_HELD);
    expect(holder.offset == 0 && holder.length == 100 && holder.exclusive == 1, 1);
    expect(dap_lock_for_repair(file, 0, 100), DAP_E_INVAL);
    expect(dap_read(file, text, 4, 0), 4);
    /* It comes back without its state. */
    expect(dap_connect(url, &options, &again), 0);
    memset(&holder, 0, sizeof holder);
    expect(dap_lock(file, 10, 1, DAP_LOCK_EXCLUSIVE, -1, &holder), DAP_E_LOCK_BROKEN);
    expect(holder.length == 100 && holder.exclusive == 1, 1);
    expect(dap_test_lock(file, 0, DAP_TO_END, 0, &holder), DAP_E_LOCK_BROKEN);
    expect(dap_read(file, text, 4, 0), DAP_E_STALE_STATEID);
    expect(dap_write(file, text, 4, 0, DAP_FILE_SYNC), DAP_E_STALE_STATEID);
    expect(dap_lock_for_repair(file, 0, 50), DAP_E_LOCK_RANGE);
    expect(dap_lock_for_repair(file, 0, 100), 0);
    expect(dap_write(file, "done", 4, 0, DAP_FILE_SYNC), 4);
    expect(dap_open(again, "kept", RDWR, 0, &other), 0);
    expect(dap_lock(other, 0, 100, 0, 0, NULL), DAP_E_LOCK_HELD);
    expect(dap_unlock(file, 0, 100), 0);
    expect(dap_lock(other, 0, 100, 0, 0, NULL), 0);
    expect(dap_read(other, text, 4, 0), 4);
    expect(memcmp(text, "done", 4), 0);
    expect(dap_close(other), 0);
    expect(dap_close(file), 0);
    expect(dap_disconnect(again), 0);
    expect(dap_remove(session, "kept"), 0);
}

static void keys_and_fences(void)
{
    dap_file_t one, two;
    const char *names[] = { "me", "somebody" };
    char found[64];

    expect(dap_open_with_key(session, "data", DAP_OPEN_READ, 0, 1, &one), 0);
    expect(dap_open_with_key(session, "data", DAP_OPEN_READ, 0, 2, &two), DAP_E_KEY_MISMATCH);
    expect(dap_open(session, "data", DAP_OPEN_READ, 0, &two), 0);
    expect(dap_open_with_key(session, "data", DAP_OPEN_READ | DAP_OPEN_STRICT_KEY, 0, 1, &one),
           DAP_E_KEY_MISMATCH);
    expect(dap_close(two), 0);
    expect(dap_close(one), 0);
    expect(dap_open_with_key(session, "data", DAP_OPEN_READ | DAP_OPEN_STRICT_KEY, 0, 1, &one), 0);
    expect(dap_open(session, "data", DAP_OPEN_READ, 0, &two), DAP_E_KEY_MISMATCH);
    expect(dap_open_with_key(session, "data", DAP_OPEN_READ, 0, 1, &two), 0);
    expect(dap_close(two), 0);
    expect(dap_close(one), 0);
    expect(dap_open(session, "data", DAP_OPEN_READ | DAP_OPEN_DENY_WRITE, 0, &one), 0);
    expect(dap_open(session, "data", DAP_OPEN_WRITE, 0, &two), DAP_E_DENIED);
    expect(dap_close(one), 0);

    expect(dap_fence(session, "data", DAP_FENCE_FILE, found, sizeof found), DAP_E_NOT_FOUND);
    expect(dap_set_fence(session, "data", DAP_FENCE_FILE, DAP_FENCE_SET, names, 2), 0);
    expect(dap_fence(session, "data", DAP_FENCE_FILE, found, sizeof found), 2);
    expect(dap_set_fence(session, "data", DAP_FENCE_FILE, DAP_FENCE_REMOVE, names + 1, 1), 0);
    expect(dap_fence(session, "data", DAP_FENCE_FILE, found, sizeof found), 1);
    expect(strcmp(found, "me"), 0);
    expect(dap_fence(session, "data", DAP_FENCE_FILE, found, 2), DAP_E_SHORT);
    expect(dap_set_fence(session, "data", DAP_FENCE_FILE, 9, names, 1), DAP_E_INVALID);
    expect(dap_set_fence(session, "data", DAP_FENCE_FILE, DAP_FENCE_CLEAR, NULL, 0), 0);
}

static int no_credentials(void *context, char *user, char *password)
{
    (void)user;
    (void)password;
    *(int *)context += 1;
    return 1;
}

int main(int argc, char **argv)
{
    dap_options_t options;
    dap_session_info_t info;
    dap_stats_t stats;
    dap_session_t never;
    dap_file_t file;
    uint64_t nanoseconds = 0;
    int asked = 0, status;
    pid_t child;

    if (argc < 3)
        return 2;
    expect(dap_options_init(&options), 0);
    options.transport = (uint32_t)atoi(argv[2]);
    options.fence_id = "me";
    options.credentials = no_credentials;
    options.context = &asked;
    expect(dap_connect(argv[1], &options, &never), DAP_E_CONNECT);
    expect(asked > 0, 1);
    options.credentials = NULL;
    expect(dap_connect(argv[1], &options, &session), 0);
    expect(dap_session_info(session, &info), 0);
    expect(info.transport, options.transport);
    expect(dap_ping(session, &nanoseconds), 0);
    expect(nanoseconds > 0, 1);
    expect(dap_is_connected(session), 1);

    names();
    expect(dap_open(session, "data", RDWR | DAP_OPEN_CREATE | DAP_OPEN_TRUNCATE, 0644, &file), 0);
    data(file);
    batches(file);
    waits(file);
    chains(file);
    locks(file);
    expect(dap_close(file), 0);
    whole_files(argv[1]);
    broken_locks(argv[1], options);
    keys_and_fences();

    /* A fork opens a session of its own. */
    child = fork();
    if (child == 0) {
        dap_session_t mine;
        dap_file_t again;
        expect(dap_connect(argv[1], &options, &mine), 0);
        expect(dap_open(mine, "data", DAP_OPEN_READ, 0, &again), 0);
        expect(dap_close(again), 0);
        expect(dap_disconnect(mine), 0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);

    expect(dap_stats(session, &stats), 0);
    expect(stats.answered > 50 && stats.bytes_written > 65536, 1);
    expect(dap_disconnect(session), 0);
    puts("done");
    return 0;
}
