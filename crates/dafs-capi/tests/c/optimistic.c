/* optimistic.c URL -- reads blocks of a file again and again, from memory that the server shows; the caller
 * looks at the server's counts. */
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
    dap_session_t session;
    dap_file_t file;

    if (argc < 2)
        return 2;
    expect(snprintf(url, sizeof url, "%s?optimistic=yes&transport=shm", argv[1]) < (int)sizeof url, 1);
    expect(dap_connect(url, NULL, &session), 0);
    expect(dap_open(session, "file", DAP_OPEN_READ, 0, &file), 0);
    for (int block = 0; block < BLOCKS; block++)
        expect(dap_read(file, first[block], BLOCK, (uint64_t)block * BLOCK), BLOCK);
    for (int number = 0; number < READS; number++) {
        int block = number % BLOCKS;

        expect(dap_read(file, found, BLOCK, (uint64_t)block * BLOCK), BLOCK);
        expect(memcmp(found, first[block], BLOCK), 0);
    }
    expect(dap_close(file), 0);
    expect(dap_disconnect(session), 0);
    puts("done");
    return 0;
}
