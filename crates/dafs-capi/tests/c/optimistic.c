/* optimistic.c URL ANSWER -- reads blocks of a file again and again, by optimistic=ANSWER from memory that the
 * server shows, and finds what another session writes; the caller looks at the server's counts. */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

#define BLOCK 4096
#define BLOCKS 20
#define READS 20000

int main(int argc, char **argv)
{
    static char first[BLOCKS][BLOCK], found[BLOCK];
    char url[256];
    dap_session_t session, other;
    dap_file_t file, written;

    if (argc < 3)
        return 2;
    expect(snprintf(url, sizeof url, "%s?optimistic=%s&transport=shm", argv[1], argv[2]) < (int)sizeof url, 1);
    expect(dap_connect(url, NULL, &session), 0);
    expect(dap_open(session, "file", DAP_OPEN_READ, 0, &file), 0);
    for (int block = 0; block < BLOCKS; block++)
        expect(dap_read(file, first[block], BLOCK, (uint64_t)block * BLOCK), BLOCK);
    for (int number = 0; number < READS; number++) {
        int block = number % BLOCKS;

        expect(dap_read(file, found, BLOCK, (uint64_t)block * BLOCK), BLOCK);
        expect(memcmp(found, first[block], BLOCK), 0);
    }
    expect(dap_connect(argv[1], NULL, &other), 0);
    expect(dap_open(other, "file", DAP_OPEN_READ | DAP_OPEN_WRITE, 0, &written), 0);
    for (int block = 0; block < BLOCKS; block++) {
        uint64_t offset = (uint64_t)block * BLOCK;

        memset(first[block], 'a' + block, BLOCK);
        expect(dap_write(written, first[block], BLOCK, offset, DAP_UNSTABLE), BLOCK);
        for (int number = 0; number < 10; number++) {
            expect(dap_read(file, found, BLOCK, offset), BLOCK);
            expect(memcmp(found, first[block], BLOCK), 0);
        }
    }
    expect(dap_close(written), 0);
    expect(dap_disconnect(other), 0);
    expect(dap_close(file), 0);
    expect(dap_disconnect(session), 0);
    puts("done");
    return 0;
}
