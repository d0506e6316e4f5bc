/* hints.c URL TRANSPORT -- reads files with hints; the caller looks at the server's cache. */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>

#include "expect.h"

#define BYTES (2 << 20)

static dap_session_t session;
static char content[BYTES];

static dap_file_t opened(const char *name, uint32_t flags)
{
    dap_file_t file;

    expect(dap_open(session, name, DAP_OPEN_READ | flags, 0, &file), 0);
    return file;
}

static void read_all(dap_file_t file)
{
    expect(dap_read(file, content, BYTES, 0), BYTES);
}

static void bad_input(void)
{
    const uint32_t read_only = DAP_OPEN_READ;
    const dap_file_t none = { 0 };
    dap_file_t file, other;

    expect(dap_open(session, "once", read_only | DAP_OPEN_CACHED << 1, 0, &other), DAP_E_INVALID);
    expect(dap_open(session, "once", read_only | DAP_OPEN_SEQUENTIAL | DAP_OPEN_RANDOM, 0, &other),
           DAP_E_INVALID);
    expect(dap_open(session, "once", read_only | DAP_OPEN_ONCE | DAP_OPEN_CACHED, 0, &other),
           DAP_E_INVALID);
    file = opened("once", 0);
    expect(dap_prefetch(file, UINT64_MAX, 1), DAP_E_INVAL);
    expect(dap_hint(none, 0, 1, DAP_PATTERN_NORMAL, DAP_HINT_DONE), DAP_E_BAD_HANDLE);
    expect(dap_hint(file, 0, 1, 3, DAP_HINT_NONE), DAP_E_INVALID);
    expect(dap_hint(file, 0, 1, UINT32_MAX, DAP_HINT_NONE), DAP_E_INVALID);
    for (uint32_t hint = 0x80; hint; hint <<= 1)
        expect(dap_hint(file, 0, 1, DAP_PATTERN_NORMAL, hint), DAP_E_INVALID);
    for (uint32_t hint = 0; hint < 0x80; hint++)
        expect(dap_hint(file, 0, 0, DAP_PATTERN_NORMAL, hint), 0);
    expect(dap_set_hint(none, DAP_HINT_DONE), DAP_E_BAD_HANDLE);
    expect(dap_set_hint(file, 0x80), DAP_E_INVALID);
    expect(dap_hint(file, 0, 0, DAP_PATTERN_NORMAL, DAP_HINT_DONE), 0);
    expect(dap_close(file), 0);
}

int main(int argc, char **argv)
{
    dap_options_t options;
    dap_file_t file;

    if (argc < 3)
        return 2;
    expect(dap_options_init(&options), 0);
    options.transport = (uint32_t)atoi(argv[2]);
    expect(dap_connect(argv[1], &options, &session), 0);

    bad_input();
    file = opened("once", DAP_OPEN_ONCE | DAP_OPEN_SEQUENTIAL);
    read_all(file);
    expect(dap_close(file), 0);

    file = opened("again", DAP_OPEN_CACHED);
    read_all(file);
    expect(dap_set_hint(file, DAP_HINT_NONE), 0);
    expect(dap_hint(file, 0, 0, DAP_PATTERN_NORMAL, DAP_HINT_AGAIN), 0);
    expect(dap_close(file), 0);

    file = opened("half", 0);
    read_all(file);
    expect(dap_hint(file, BYTES / 2, 0, DAP_PATTERN_NORMAL, DAP_HINT_DONE), 0);
    expect(dap_close(file), 0);

    file = opened("ahead", 0);
    expect(dap_prefetch(file, 0, BYTES), 0);
    expect(dap_close(file), 0);

    file = opened("random", DAP_OPEN_RANDOM);
    expect(dap_read(file, content, 4096, 0), 4096);
    expect(dap_close(file), 0);

    expect(dap_disconnect(session), 0);
    puts("done");
    return 0;
}
