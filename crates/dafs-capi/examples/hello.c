/* hello.c URL [TRANSPORT] -- write a file on a DAFS server, and read it back. */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, dap_error_name(result), dap_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    const char text[] = "hello, server\n";
    char back[64];
    dap_options_t options;
    dap_session_t session;
    dap_file_t file;
    int64_t bytes;

    if (argc < 2) {
        fprintf(stderr, "usage: hello dafs://HOST/PATH [TRANSPORT]\n");
        return 2;
    }
    must(dap_options_init(&options), "options");
    if (argc > 2)
        options.transport = (uint32_t)atoi(argv[2]);
    must(dap_connect(argv[1], &options, &session), "connect");

    must(dap_open(session, "hello", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0644, &file),
         "open");
    must(dap_write(file, text, strlen(text), 0, DAP_FILE_SYNC), "write");
    bytes = dap_read(file, back, sizeof back, 0);
    must(bytes, "read");
    printf("read back %d bytes: %.*s", (int)bytes, (int)bytes, back);

    must(dap_close(file), "close");
    must(dap_disconnect(session), "disconnect");
    return 0;
}
