/* bad_input.c URL TRANSPORT -- mistakes of a program are error codes, never crashes. */
#include <dafs.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

static dap_session_t session, other;
static dap_group_t group;
static dap_file_t file;
static char memory[1 << 16];
static const uint64_t constant[1024] = { 1 };

static void nulls(void)
{
    dap_session_t s;
    dap_options_t options;
    dap_piece_t piece = { { 0 }, 0, 0 };

    expect(dap_options_init(NULL), DAP_E_INVALID);
    expect(dap_connect(NULL, NULL, &s), DAP_E_INVALID);
    expect(dap_connect("dafs://127.0.0.1/", NULL, NULL), DAP_E_INVALID);
    expect(dap_connect("nonsense", NULL, &s), DAP_E_URL);
    memset(&options, 0xff, sizeof options);
    expect(dap_connect("dafs://127.0.0.1/", &options, &s), DAP_E_INVALID);
    expect(dap_options_init(&options), 0);
    options.transport = 77;
    expect(dap_connect("dafs://127.0.0.1/", &options, &s), DAP_E_INVALID);
    expect(dap_options_init(&options), 0);
    options.user = "anna";
    options.password = "secret";
    expect(dap_connect("dafs://bert@127.0.0.1/", &options, &s), DAP_E_INVALID);
    expect(dap_session_info(session, NULL), DAP_E_INVALID);
    expect(dap_stats(session, NULL), DAP_E_INVALID);
    expect(dap_open(session, NULL, DAP_OPEN_READ, 0, &file), DAP_E_INVALID);
    expect(dap_open(session, "file", DAP_OPEN_READ, 0, NULL), DAP_E_INVALID);
    expect(dap_stat(session, "file", 0, NULL), DAP_E_INVALID);
    expect(dap_stat(session, NULL, 0, NULL), DAP_E_INVALID);
    expect(dap_set_attributes(session, "file", 0, NULL), DAP_E_INVALID);
    expect(dap_fset_attributes(file, NULL), DAP_E_INVALID);
    expect(dap_fstat(file, NULL), DAP_E_INVALID);
    expect(dap_rename(session, "file", NULL), DAP_E_INVALID);
    expect(dap_readlink(session, "file", NULL, 10), DAP_E_INVALID);
    expect(dap_read_file(session, "file", NULL, 10), DAP_E_INVALID);
    expect(dap_opendir(session, "/", NULL), DAP_E_INVALID);
    expect(dap_read(file, NULL, 1, 0), DAP_E_INVALID);
    expect(dap_read(file, NULL, 0, 0), 0);
    expect(dap_write(file, NULL, 1, 0, DAP_UNSTABLE), DAP_E_INVALID);
    expect(dap_register(session, NULL, 4096, NULL), DAP_E_INVALID);
    expect(dap_group_create(session, NULL), DAP_E_INVALID);
    expect(dap_io_wait(group, NULL, 1, 1, 0), DAP_E_INVALID);
    expect(dap_io_poll(group, NULL, 1), DAP_E_INVALID);
    expect(dap_async_read_memory(group, 0, file, NULL, 1, 0, NULL), DAP_E_INVALID);
    expect(dap_set_fence(session, "file", DAP_FENCE_FILE, DAP_FENCE_SET, NULL, 1), DAP_E_INVALID);
    expect(dap_batch_create(session, NULL), DAP_E_INVALID);
    expect(dap_batch_read((dap_batch_t){ 0 }, file, NULL, 1, &piece, 1), DAP_E_BAD_HANDLE);
    if (strlen(dap_strerror(DAP_E_INVALID)) == 0 || strlen(dap_strerror(-123456)) == 0)
        exit(1);
}

/* Results in memory that is unmapped or read-only. */
static void bad_places(void *place)
{
    dap_chain_t chain;
    char target[16];

    expect(dap_options_init(place), DAP_E_FAULT);
    expect(dap_connect("dafs://127.0.0.1/", NULL, place), DAP_E_FAULT);
    expect(dap_session_info(session, place), DAP_E_FAULT);
    expect(dap_stats(session, place), DAP_E_FAULT);
    expect(dap_ping(session, place), DAP_E_FAULT);
    expect(dap_stat(session, "file", 0, place), DAP_E_FAULT);
    expect(dap_fstat(file, place), DAP_E_FAULT);
    expect(dap_statfs(session, "file", place), DAP_E_FAULT);
    expect(dap_open(session, "file", DAP_OPEN_READ, 0, place), DAP_E_FAULT);
    expect(dap_open_with_key(session, "file", DAP_OPEN_READ, 0, 7, place), DAP_E_FAULT);
    expect(dap_opendir(session, "/", place), DAP_E_FAULT);
    expect(dap_readlink(session, "file", place, 10), DAP_E_FAULT);
    expect(dap_read_file(session, "file", place, 10), DAP_E_FAULT);
    expect(dap_fence(session, "file", DAP_FENCE_FILE, place, 10), DAP_E_FAULT);
    expect(dap_buffer_alloc(session, 10, place, place), DAP_E_FAULT);
    expect(dap_register(session, memory, 10, place), DAP_E_FAULT);
    expect(dap_lend(session, memory, 10, place), DAP_E_FAULT);
    expect(dap_group_create(session, place), DAP_E_FAULT);
    expect(dap_batch_create(session, place), DAP_E_FAULT);
    expect(dap_chain_create(session, place), DAP_E_FAULT);
    expect(dap_append(file, "a", 1, DAP_FILE_SYNC, place), DAP_E_FAULT);
    expect(dap_test_lock(file, 0, 1, 0, place), DAP_E_FAULT);
    expect(dap_lock(file, 0, 1, 0, 0, place), DAP_E_FAULT);
    expect(dap_async_read_memory(group, 0, file, memory, 1, 0, place), DAP_E_FAULT);
    expect(dap_async_write_memory(group, 0, file, memory, 1, 0, DAP_UNSTABLE, place), DAP_E_FAULT);
    expect(dap_async_append_memory(group, 0, file, memory, 1, DAP_FILE_SYNC, place), DAP_E_FAULT);
    expect(dap_async_commit(group, 0, file, 0, 0, place), DAP_E_FAULT);
    expect(dap_io_wait(group, place, 1, 1, 0), DAP_E_FAULT);
    expect(dap_io_poll(group, place, 1), DAP_E_FAULT);
    expect(dap_io_in_flight(group), 0);
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_stat(chain, place), DAP_E_FAULT);
    expect(dap_chain_discard(chain), 0);
    /* Optional results may be null. */
    expect(dap_readlink(session, "file", target, 0) < 0, 1);
}

/* Completions that could not all be returned are returned the next time. */
static void too_few_places(void)
{
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    dap_completion_t *two = (void *)(page + 4096 - 2 * sizeof *two), good[16];
    dap_group_t watched_group;
    struct pollfd told = { .events = POLLIN };
    int at;

    /* Not unmapped: a new map may take a hole. */
    expect(page != MAP_FAILED && mprotect(page + 4096, 4096, PROT_NONE) == 0, 1);
    /* Completions that could not be returned still count as unfetched, for waits and for counts. */
    expect(dap_group_create(session, &watched_group), 0);
    told.fd = dap_group_descriptor(watched_group);
    for (at = 0; at < 4; at++)
        expect(dap_async_read_memory(watched_group, at, file, memory + 16 * at, 10, 0, NULL), 0);
    expect(dap_io_wait(watched_group, two, 4096, 4, 30000), DAP_E_FAULT);
    expect(poll(&told, 1, 10000), 1);
    for (at = 4; at < 8; at++)
        expect(dap_async_read_memory(watched_group, at, file, memory + 16 * at, 10, 0, NULL), 0);
    expect(dap_io_wait(watched_group, good, 16, 8, 30000), 8);
    for (at = 0; at < 4; at++)
        expect(good[at].user_data < 4, 1);
    expect(poll(&told, 1, 0), 0);
    expect(dap_group_free(watched_group), 0);
    for (at = 0; at < 4; at++)
        expect(dap_async_read_memory(group, at, file, memory + 16 * at, 10, 0, NULL), 0);
    expect(dap_io_wait(group, two, 4096, 4, 30000), DAP_E_FAULT);
    expect(dap_io_in_flight(group), 0);
    expect(dap_io_poll(group, two, 4096), DAP_E_FAULT);
    expect(dap_io_poll(group, two, 2), 2);
    expect(dap_io_wait(group, good, 16, 16, 30000), 2);
    expect(two[0].user_data + two[1].user_data + good[0].user_data + good[1].user_data, 6);
    expect(dap_io_wait(group, good, 16, 16, 30000), 0);
    munmap(page, 8192);
}

static void nulls_and_nonsense_elsewhere(void)
{
    const dap_file_t no_file = { 0 };
    const dap_session_t no_session = { 0 };
    const dap_group_t no_group = { 0 };
    const dap_buffer_t no_buffer = { 0 };
    const char *names[] = { "a", NULL };
    dap_buffer_t buffer;
    dap_batch_t batch;
    dap_chain_t chain;
    dap_range_t range = { 0, 10 };
    dap_piece_t piece;
    void *address;
    size_t bytes;
    int64_t result;

    expect(dap_append(file, NULL, 1, DAP_FILE_SYNC, NULL), DAP_E_INVALID);
    expect(dap_append(file, "a", SIZE_MAX, DAP_FILE_SYNC, NULL), DAP_E_INVALID);
    expect(dap_append(file, (void *)8, 8, DAP_FILE_SYNC, NULL), DAP_E_FAULT);
    expect(dap_append(file, "a", 1, DAP_UNSTABLE, NULL), DAP_E_INVALID);
    expect(dap_append(no_file, "a", 1, DAP_FILE_SYNC, NULL), DAP_E_BAD_HANDLE);
    expect(dap_append_buffer(file, no_buffer, 0, 1, DAP_FILE_SYNC, NULL), DAP_E_BAD_HANDLE);
    expect(dap_buffer_alloc(session, 4096, &buffer, &address), 0);
    expect(dap_append_buffer(file, buffer, 1, SIZE_MAX, DAP_FILE_SYNC, NULL), DAP_E_INVALID);
    expect(dap_append_buffer(file, buffer, 4097, 0, DAP_FILE_SYNC, NULL), DAP_E_INVALID);
    expect(dap_async_write(group, 0, file, no_buffer, 0, 1, 0, DAP_UNSTABLE, NULL), DAP_E_BAD_HANDLE);
    expect(dap_async_write(group, 0, file, buffer, 4096, 1, 0, DAP_UNSTABLE, NULL), DAP_E_INVALID);
    expect(dap_async_write(group, 0, file, buffer, 0, 1, 0, 9, NULL), DAP_E_INVALID);
    expect(dap_async_write(group, 0, file, buffer, 0, 1, UINT64_MAX, DAP_UNSTABLE, NULL), DAP_E_INVALID);
    expect(dap_write_buffer(file, no_buffer, 0, 1, 0, DAP_UNSTABLE), DAP_E_BAD_HANDLE);
    expect(dap_write_buffer(file, buffer, SIZE_MAX, SIZE_MAX, 0, DAP_UNSTABLE), DAP_E_INVALID);
    expect(dap_write_buffer(file, buffer, 0, 1, 0, 9), DAP_E_INVALID);
    expect(dap_buffer_memory(no_buffer, &address, &bytes), DAP_E_BAD_HANDLE);
    expect(dap_buffer_memory(buffer, (void *)8, &bytes), DAP_E_FAULT);
    expect(dap_buffer_memory(buffer, &address, (void *)8), DAP_E_FAULT);

    expect(dap_batch_create(session, &batch), 0);
    piece = (dap_piece_t){ buffer, 0, 10 };
    expect(dap_batch_window((dap_batch_t){ 0 }, 10, 1), DAP_E_BAD_HANDLE);
    expect(dap_batch_window(batch, UINT32_MAX, UINT32_MAX), 0);
    expect(dap_batch_read(batch, file, &range, 1, &piece, 1), 0);
    expect(dap_batch_submit(batch, no_group, NULL, NULL), DAP_E_BAD_HANDLE);
    expect(dap_batch_submit(batch, group, NULL, NULL), DAP_E_INVALID);
    expect(dap_batch_run(batch, &result), DAP_E_BAD_HANDLE);
    expect(dap_batch_create(session, &batch), 0);
    expect(dap_batch_read(batch, file, &range, 1, &piece, 1), 0);
    expect(dap_batch_run(batch, (void *)8), DAP_E_FAULT);
    expect(dap_io_expedite(no_group, 1), DAP_E_BAD_HANDLE);
    expect(dap_io_expedite(group, 12345), 0);
    expect(dap_io_in_flight(no_group), DAP_E_BAD_HANDLE);
    expect(dap_unregister(buffer), 0);

    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_mkdir(chain, NULL, 0, 0755), DAP_E_INVALID);
    expect(dap_chain_mkdir(chain, "a", 2, 0755), DAP_E_INVALID);
    expect(dap_chain_mkdir(chain, "a", 0, 010755), DAP_E_INVALID);
    expect(dap_chain_unlock(chain, no_file, 0, 1), DAP_E_BAD_HANDLE);
    expect(dap_chain_discard(chain), 0);

    expect(dap_commit(no_file, 0, 0), DAP_E_BAD_HANDLE);
    expect(dap_prefetch(no_file, 0, 1), DAP_E_BAD_HANDLE);
    expect(dap_truncate(no_file, 0), DAP_E_BAD_HANDLE);
    expect(dap_truncate(file, UINT64_MAX) < 0, 1);
    expect(dap_unlock(no_file, 0, 1), DAP_E_BAD_HANDLE);
    expect(dap_abort_lock(no_file), DAP_E_BAD_HANDLE);
    expect(dap_lock_for_repair(no_file, 0, 1), DAP_E_BAD_HANDLE);
    expect(dap_test_lock(no_file, 0, 1, 0, NULL), DAP_E_BAD_HANDLE);
    expect(dap_test_lock(file, 0, 1, 0x80, NULL), DAP_E_INVALID);
    expect(dap_flush(no_session), DAP_E_BAD_HANDLE);
    expect(dap_is_connected(no_session), DAP_E_BAD_HANDLE);

    expect(dap_create_file(session, NULL, 0644, "a", 1, DAP_FILE_SYNC), DAP_E_INVALID);
    expect(dap_create_file(session, "new", 0644, NULL, 1, DAP_FILE_SYNC), DAP_E_INVALID);
    expect(dap_create_file(session, "new", 0644, (void *)8, 8, DAP_FILE_SYNC), DAP_E_FAULT);
    expect(dap_create_file(session, "new", 0644, "a", SIZE_MAX, DAP_FILE_SYNC), DAP_E_INVALID);
    expect(dap_create_file(session, "new", 0xffffffff, "a", 1, DAP_FILE_SYNC), DAP_E_INVALID);
    expect(dap_link(session, NULL, "b"), DAP_E_INVALID);
    expect(dap_link(session, "file", NULL), DAP_E_INVALID);
    expect(dap_symlink(session, NULL, "b"), DAP_E_INVALID);
    expect(dap_symlink(session, "a", (const char *)8), DAP_E_FAULT);
    expect(dap_remove(session, NULL), DAP_E_INVALID);
    expect(dap_remove(session, "") < 0, 1);
    expect(dap_statfs(session, NULL, NULL), DAP_E_INVALID);
    expect(dap_open_with_key(session, NULL, DAP_OPEN_READ, 0, 7, &file), DAP_E_INVALID);
    expect(dap_open(session, "file", DAP_OPEN_READ | DAP_OPEN_STRICT_KEY, 0, &file), DAP_E_INVALID);
    expect(dap_fence(session, NULL, DAP_FENCE_FILE, memory, 10), DAP_E_INVALID);
    expect(dap_fence(session, "file", 77, memory, 10), DAP_E_INVALID);
    expect(dap_set_fence(session, "file", DAP_FENCE_FILE, DAP_FENCE_SET, names, 2), DAP_E_INVALID);
    expect(dap_set_fence(session, "file", DAP_FENCE_FILE, DAP_FENCE_SET, names, SIZE_MAX), DAP_E_INVALID);
    dap_limit_thread(INT64_MIN);
    dap_limit_thread(INT64_MAX);
    expect(dap_ping(session, NULL), 0);
    dap_limit_thread(-1);
    expect(dap_errno(INT64_MIN) > 0 && dap_errno(INT64_MAX) == 0, 1);
}

static void absurd_sizes(void)
{
    dap_buffer_t buffer;
    dap_batch_t batch;
    dap_chain_t chain;
    dap_range_t range = { 0, SIZE_MAX };
    dap_piece_t piece;
    dap_completion_t done[2];
    void *address;
    char *long_path = malloc(100000);

    expect(dap_read(file, memory, SIZE_MAX, 0), DAP_E_INVALID);
    expect(dap_read(file, memory, (size_t)1 << 39, 0), DAP_E_FAULT);
    expect(dap_write(file, memory, SIZE_MAX / 2, 0, DAP_UNSTABLE), DAP_E_INVALID);
    expect(dap_write(file, memory, 1, 0, 9), DAP_E_INVALID);
    expect(dap_buffer_alloc(session, SIZE_MAX, &buffer, &address), DAP_E_INVALID);
    expect(dap_buffer_alloc(session, 0, &buffer, &address), DAP_E_INVALID);
    expect(dap_register(session, memory, SIZE_MAX, &buffer), DAP_E_INVALID);
    expect(dap_lend(session, memory, (size_t)1 << 40, &buffer), DAP_E_FAULT);
    expect(dap_register(session, memory, sizeof memory, &buffer), 0);
    expect(dap_read_buffer(file, buffer, SIZE_MAX, 2, 0), DAP_E_INVALID);
    expect(dap_read_buffer(file, buffer, 0, sizeof memory + 1, 0), DAP_E_INVALID);
    expect(dap_async_read(group, 0, file, buffer, sizeof memory, 1, 0, NULL), DAP_E_INVALID);
    expect(dap_async_read(group, 0, file, buffer, 1, SIZE_MAX, 0, NULL), DAP_E_INVALID);
    expect(dap_io_wait(group, done, SIZE_MAX, SIZE_MAX, -1), 0);
    expect(dap_io_cancel(group, 12345), 1);
    piece = (dap_piece_t){ buffer, 0, SIZE_MAX };
    expect(dap_batch_create(session, &batch), 0);
    expect(dap_batch_read(batch, file, &range, 1, &piece, 1), DAP_E_INVALID);
    expect(dap_batch_read(batch, file, &range, SIZE_MAX, &piece, 1), DAP_E_INVALID);
    expect(dap_batch_discard(batch), 0);
    expect(dap_batch_discard(batch), DAP_E_BAD_HANDLE);

    expect(dap_chain_create(session, NULL), DAP_E_INVALID);
    expect(dap_chain_create(session, &chain), 0);
    expect(dap_chain_lookup(chain, NULL, 0), DAP_E_INVALID);
    expect(dap_chain_lookup(chain, "", DAP_CHAIN_FOUND), DAP_E_INVALID);
    expect(dap_chain_lookup(chain, "a", 2), DAP_E_INVALID);
    expect(dap_chain_lookup(chain, "a/", 0), DAP_E_INVALID);
    expect(dap_chain_remove(chain, "a/", 0), DAP_E_INVALID);
    expect(dap_chain_remove(chain, "a/b", DAP_CHAIN_FOUND), DAP_E_INVALID);
    expect(dap_chain_stat(chain, NULL), DAP_E_INVALID);
    expect(dap_chain_access(chain, 0x100), DAP_E_INVALID);
    expect(dap_chain_read(chain, file, NULL, 1, 0), DAP_E_INVALID);
    expect(dap_chain_read(chain, file, (void *)8, 8, 0), DAP_E_FAULT);
    expect(dap_chain_write(chain, file, (void *)8, 8, 0, DAP_FILE_SYNC), DAP_E_FAULT);
    expect(dap_chain_write(chain, file, "a", SIZE_MAX, 0, DAP_FILE_SYNC), DAP_E_INVALID);
    expect(dap_chain_write(chain, file, "a", 1, 0, DAP_UNSTABLE), DAP_E_INVALID);
    expect(dap_chain_write(chain, (dap_file_t){ 77 }, "a", 1, 0, DAP_FILE_SYNC), DAP_E_BAD_HANDLE);
    expect(dap_chain_lock(chain, (dap_file_t){ 0 }, 0, 1, 0), DAP_E_BAD_HANDLE);
    expect(dap_chain_lock(chain, file, 0, 1, 99), DAP_E_INVALID);
    expect(dap_chain_lookup((dap_chain_t){ 0 }, "a", 0), DAP_E_BAD_HANDLE);
    expect(dap_chain_lookup(chain, "a", 0), 0);
    expect(dap_chain_run(chain, NULL), DAP_E_INVALID);
    expect(dap_chain_discard(chain), DAP_E_BAD_HANDLE);
    expect(dap_unregister(buffer), 0);
    memset(long_path, 'a', 99999);
    long_path[99999] = 0;
    expect(dap_mkdir(session, long_path, 0755), DAP_E_INVALID);
    expect(dap_open(session, "file", 0xffffffff, 0, &file), DAP_E_INVALID);
    expect(dap_open(session, "file", 0, 0, &file), DAP_E_INVALID);
    expect(dap_open(session, "new", DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0xffff, &file), DAP_E_INVALID);
    expect(dap_lock(file, 0, 1, 0x80, 0, NULL), DAP_E_INVALID);
    expect(dap_access(session, "file", 0x1000), DAP_E_INVALID);
    free(long_path);
}

static void bad_memory(void)
{
    dap_buffer_t buffer;
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    memset(page, 'a', 8192);
    expect(dap_lend(session, page, 8192, &buffer), 0);
    expect(dap_forget_memory(session, page, 1), DAP_E_BUSY);
    expect(dap_unregister(buffer), 0);
    expect(dap_forget_memory(session, page, 1), 0);
    mprotect(page, 8192, PROT_READ);
    expect(dap_read(file, page, 8192, 0), DAP_E_FAULT);
    expect(dap_write(file, page, 8192, 0, DAP_UNSTABLE), 8192);
    expect(dap_register(session, page, 8192, &buffer), DAP_E_FAULT);
    expect(dap_async_write_memory(group, 0, file, page, 8192, 0, DAP_UNSTABLE, NULL), DAP_E_FAULT);
    munmap(page + 4096, 4096);
    expect(dap_write(file, page, 8192, 0, DAP_UNSTABLE), DAP_E_FAULT);
    /* A text that runs into unmapped memory. */
    expect(dap_mkdir(session, page, 0755), DAP_E_FAULT);
    munmap(page, 4096);
    expect(dap_write(file, page, 1, 0, DAP_UNSTABLE), DAP_E_FAULT);
    expect(dap_lend(session, page, 4096, &buffer), DAP_E_FAULT);
    expect(dap_stat(session, page, 0, NULL), DAP_E_INVALID);
    expect(dap_rmdir(session, page), DAP_E_FAULT);
    expect(dap_rmdir(session, (const char *)-1), DAP_E_FAULT);
}

/* True if unmapped memory must not be accessed, because valgrind checks that. */
static int watched;
static int reads_that_failed;

/* Operations whose memory is unmapped meanwhile: only they fail. */
static void memory_that_goes(void)
{
    enum { OPERATIONS = 16, BYTES = 1 << 16, GONE = 5 };
    char *pages = mmap(NULL, OPERATIONS * BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    dap_completion_t done[OPERATIONS];
    dap_buffer_t buffer;
    int at, round;

    for (round = 0; round < 2; round++) {
        expect(dap_register(session, pages, OPERATIONS * BYTES, &buffer), 0);
        for (at = 0; at < OPERATIONS; at++)
            expect(dap_async_read(group, at, file, buffer, at * BYTES, BYTES, 0, NULL), 0);
        /* As after munmap(), but no memory of the library can take its place. */
        mmap(pages + GONE * BYTES, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        expect(dap_io_wait(group, done, OPERATIONS, OPERATIONS, -1), OPERATIONS);
        for (at = 0; at < OPERATIONS; at++) {
            if (done[at].user_data == GONE && done[at].result == DAP_E_FAULT)
                reads_that_failed++;
            else /* It may also have come before its memory went. */
                expect(done[at].result, BYTES);
        }
        for (at = 0; at < OPERATIONS; at++)
            expect(dap_async_write(group, at, file, buffer, at * BYTES, BYTES, 0, DAP_UNSTABLE, NULL), 0);
        expect(dap_io_wait(group, done, OPERATIONS, OPERATIONS, -1), OPERATIONS);
        for (at = 0; at < OPERATIONS; at++)
            expect(done[at].result, done[at].user_data == GONE ? DAP_E_FAULT : BYTES);
        expect(dap_unregister(buffer), 0);
        mmap(pages + GONE * BYTES, BYTES, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    munmap(pages, OPERATIONS * BYTES);
}

static volatile int faults;
static sigjmp_buf out;

static void counted(int number)
{
    (void)number;
    faults++;
    siglongjmp(out, 1);
}

/* A program's handler gets the program's faults and no others, installed before ours or after it. */
static void handlers(void)
{
    struct sigaction action, before;
    void *volatile nowhere = (void *)8;
    int round, at;

    for (round = 0; round < 2; round++) {
        if (sigsetjmp(out, 1) == 0)
            *(volatile char *)nowhere = 1;
        expect(faults, round + 1);
        memory_that_goes();
        expect(faults, round + 1);
        memset(&action, 0, sizeof action);
        action.sa_handler = counted;
        sigaction(SIGSEGV, &action, &before);
        if (round == 0) {
            /* The library's handler again, restored by a program without flags: it gets no fault information. */
            signal(SIGSEGV, before.sa_handler);
            for (at = 0; at < 20; at++)
                expect(dap_read(file, memory, 100, 0), 100);
            memory_that_goes();
            expect(faults, round + 1);
            sigaction(SIGSEGV, &action, NULL);
        }
        /* Noticed within sixteen short copies. */
        for (at = 0; at < 20; at++)
            expect(dap_read(file, memory, 100, 0), 100);
    }
    expect(reads_that_failed > 0, 1);
}

static void closed_and_foreign(void)
{
    dap_file_t second, twin;
    dap_buffer_t buffer, of_other;
    dap_group_t closed, of_others;
    dap_batch_t batch;
    dap_range_t range = { 0, 10 };
    dap_piece_t piece;
    dap_dir_t directory;
    dap_entry_t entry;
    dap_completion_t done;
    void *address;
    int at;

    expect(dap_open(session, "file", DAP_OPEN_READ, 0, &second), 0);
    expect(dap_close(second), 0);
    expect(dap_open(session, "file", DAP_OPEN_READ, 0, &twin), 0);
    expect(dap_close(second), DAP_E_BAD_HANDLE);
    expect(dap_read(second, memory, 10, 0), DAP_E_BAD_HANDLE);
    expect(dap_read((dap_file_t){ session.id }, memory, 10, 0), DAP_E_BAD_HANDLE);
    expect(dap_read((dap_file_t){ 0 }, memory, 10, 0), DAP_E_BAD_HANDLE);
    expect(dap_read((dap_file_t){ UINT64_MAX }, memory, 10, 0), DAP_E_BAD_HANDLE);
    expect(dap_ping((dap_session_t){ file.id }, NULL), DAP_E_BAD_HANDLE);
    expect(dap_write(twin, memory, 1, 0, DAP_UNSTABLE) < 0, 1);
    expect(dap_close(twin), 0);
    expect(dap_opendir(session, "file", &directory), DAP_E_NOTDIR);
    expect(dap_opendir(session, "/", &directory), 0);
    expect(dap_closedir(directory), 0);
    expect(dap_readdir(directory, &entry), DAP_E_BAD_HANDLE);

    expect(dap_buffer_alloc(session, 65536, &buffer, &address), 0);
    expect(dap_buffer_alloc(other, 65536, &of_other, &address), 0);
    expect(dap_async_read(group, 1, file, of_other, 0, 10, 0, NULL), DAP_E_FOREIGN);
    expect(dap_read_buffer(file, of_other, 0, 10, 0), DAP_E_FOREIGN);
    expect(dap_group_create(other, &of_others), 0);
    expect(dap_async_read(of_others, 1, file, of_other, 0, 10, 0, NULL), DAP_E_FOREIGN);
    expect(dap_async_commit(of_others, 1, file, 0, 0, NULL), DAP_E_FOREIGN);
    expect(dap_async_append(of_others, 1, file, buffer, 0, 1, DAP_FILE_SYNC, NULL), DAP_E_FOREIGN);
    expect(dap_group_free(of_others), 0);
    expect(dap_batch_create(other, &batch), 0);
    piece = (dap_piece_t){ of_other, 0, 10 };
    expect(dap_batch_read(batch, file, &range, 1, &piece, 1), DAP_E_FOREIGN);
    expect(dap_batch_write(batch, file, &range, 1, &piece, 1), DAP_E_FOREIGN);
    expect(dap_batch_discard(batch), 0);
    expect(dap_unregister(of_other), 0);
    expect(dap_read_buffer(file, of_other, 0, 10, 0), DAP_E_BAD_HANDLE);

    /* Handles cannot be closed under operations: many more than the server accepts at a time. */
    for (at = 0; at < 512; at++)
        expect(dap_async_read(group, 7, file, buffer, 0, 65536, 0, NULL), 0);
    expect(dap_unregister(buffer), DAP_E_BUSY);
    expect(dap_group_free(group), DAP_E_BUSY);
    for (at = 0; at < 512; at++) {
        expect(dap_io_wait(group, &done, 1, 1, -1), 1);
        expect(done.result, 65536);
        expect(done.user_data, 7);
    }
    expect(dap_unregister(buffer), 0);
    expect(dap_async_read(group, 7, file, buffer, 0, 10, 0, NULL), DAP_E_BAD_HANDLE);
    expect(dap_group_create(session, &closed), 0);
    expect(dap_group_free(closed), 0);
    expect(dap_io_wait(closed, &done, 1, 1, -1), DAP_E_BAD_HANDLE);
    expect(dap_group_descriptor(closed), DAP_E_BAD_HANDLE);
}

static void after_fork(void)
{
    int status;
    pid_t child;
    dap_completion_t done;
    dap_buffer_t buffer;
    void *address;

    expect(dap_buffer_alloc(session, 4096, &buffer, &address), 0);
    child = fork();
    if (child == 0) {
        expect(dap_read(file, memory, 10, 0), DAP_E_FORKED);
        expect(dap_close(file), DAP_E_FORKED);
        expect(dap_disconnect(session), DAP_E_FORKED);
        expect(dap_io_wait(group, &done, 1, 1, -1), DAP_E_FORKED);
        expect(dap_unregister(buffer), DAP_E_FORKED);
        _exit(0);
    }
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    expect(dap_read(file, memory, 10, 0), 10);
    expect(dap_unregister(buffer), 0);
}

static void *wait_for_some(void *fetched)
{
    dap_completion_t done[8];
    int64_t count, at;

    while ((count = dap_io_wait(group, done, 8, 1, -1)) > 0) {
        for (at = 0; at < count; at++)
            expect(done[at].result, 4096);
        *(size_t *)fetched += (size_t)count;
    }
    expect(count, 0);
    return NULL;
}

static void two_threads_on_one_group(void)
{
    enum { OPERATIONS = 256 };
    pthread_t threads[2];
    size_t fetched[2] = { 0, 0 }, at;
    dap_buffer_t buffer;
    void *address;

    expect(dap_buffer_alloc(session, 4096 * OPERATIONS, &buffer, &address), 0);
    for (at = 0; at < OPERATIONS; at++)
        expect(dap_async_read(group, at, file, buffer, at * 4096, 4096, at * 4096 % (1 << 20), NULL),
               0);
    for (at = 0; at < 2; at++)
        pthread_create(&threads[at], NULL, wait_for_some, &fetched[at]);
    for (at = 0; at < 2; at++)
        pthread_join(threads[at], NULL);
    expect((int64_t)(fetched[0] + fetched[1]), OPERATIONS);
    expect(dap_unregister(buffer), 0);
}

int main(int argc, char **argv)
{
    dap_options_t options;
    dap_file_t kept;

    if (argc < 3)
        return 2;
    watched = argc > 3;
    signal(SIGSEGV, counted);
    expect(dap_options_init(&options), 0);
    options.transport = (uint32_t)atoi(argv[2]);
    expect(dap_connect(argv[1], &options, &session), 0);
    expect(dap_connect(argv[1], &options, &other), 0);
    expect(dap_open(session, "file", DAP_OPEN_READ | DAP_OPEN_WRITE, 0, &file), 0);
    expect(dap_group_create(session, &group), 0);
    nulls();
    absurd_sizes();
    bad_memory();
    if (!watched)
        handlers();
    bad_places((void *)8);
    bad_places((void *)constant);
    too_few_places();
    nulls_and_nonsense_elsewhere();
    closed_and_foreign();
    after_fork();
    two_threads_on_one_group();
    expect(dap_group_free(group), 0);

    /* The rest of a session that is over. */
    kept = file;
    expect(dap_disconnect(session), 0);
    expect(dap_disconnect(session), DAP_E_BAD_HANDLE);
    expect(dap_read(kept, memory, 10, 0), DAP_E_LOST);
    expect(dap_close(kept) < 0, 1);
    expect(dap_close(kept), DAP_E_BAD_HANDLE);
    expect(dap_disconnect(other), 0);
    puts("done");
    return 0;
}
