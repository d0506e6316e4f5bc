/* asynchronous.c URL [TRANSPORT] -- many reads and writes in flight, out of one registered buffer. */
#include <dafs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 64, BLOCK_BYTES = 65536, AT_ONCE = 16 };

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, dap_error_name(result), dap_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    dap_completion_t done[AT_ONCE];
    dap_options_t options;
    dap_session_t session;
    dap_group_t group;
    dap_buffer_t buffer;
    dap_file_t file;
    void *memory;
    uint64_t bytes = 0;
    size_t block, finished = 0;
    int64_t count, at;
    struct pollfd ready = { .events = POLLIN };

    if (argc < 2) {
        fprintf(stderr, "usage: asynchronous dafs://HOST/PATH [TRANSPORT]\n");
        return 2;
    }
    must(dap_options_init(&options), "options");
    if (argc > 2)
        options.transport = (uint32_t)atoi(argv[2]);
    must(dap_connect(argv[1], &options, &session), "connect");
    must(dap_open(session, "blocks", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0644, &file),
         "open");
    must(dap_buffer_alloc(session, (size_t)BLOCKS * BLOCK_BYTES, &buffer, &memory), "buffer");
    must(dap_group_create(session, &group), "group");

    /* All writes at once, waited for together. */
    for (block = 0; block < BLOCKS; block++) {
        memset((char *)memory + block * BLOCK_BYTES, (int)block, BLOCK_BYTES);
        must(dap_async_write(group, block, file, buffer, block * BLOCK_BYTES, BLOCK_BYTES,
                             block * BLOCK_BYTES, DAP_UNSTABLE, NULL),
             "write");
    }
    while ((count = dap_io_wait(group, done, AT_ONCE, SIZE_MAX, -1)) > 0)
        for (at = 0; at < count; at++)
            must(done[at].result, "a write");
    must(count, "wait");
    must(dap_commit(file, 0, 0), "commit");

    /* The same for reading, with a descriptor that an event loop can watch. */
    memset(memory, 0xff, (size_t)BLOCKS * BLOCK_BYTES);
    ready.fd = dap_group_descriptor(group);
    must(ready.fd, "descriptor");
    for (block = 0; block < BLOCKS; block++)
        must(dap_async_read(group, block, file, buffer, block * BLOCK_BYTES, BLOCK_BYTES,
                            block * BLOCK_BYTES, NULL),
             "read");
    must(dap_flush(session), "flush");
    while (finished < BLOCKS) {
        poll(&ready, 1, -1);
        count = dap_io_poll(group, done, AT_ONCE);
        must(count, "poll");
        for (at = 0; at < count; at++) {
            must(done[at].result, "a read");
            bytes += (uint64_t)done[at].result;
            if (((unsigned char *)memory)[done[at].user_data * BLOCK_BYTES] != done[at].user_data) {
                fprintf(stderr, "block %d is another one\n", (int)done[at].user_data);
                return 1;
            }
        }
        finished += (size_t)count;
    }
    printf("%d blocks, %llu bytes\n", (int)finished, (unsigned long long)bytes);

    must(dap_group_free(group), "group");
    must(dap_unregister(buffer), "buffer");
    must(dap_close(file), "close");
    must(dap_disconnect(session), "disconnect");
    return 0;
}
