/* gzip.c URL TO FROM... -- packs files of the server one after the other into one file of the server, in
 * the format of gzip. Pieces are read ahead of the packing and written behind it, from and to registered
 * memory, so that the processor waits for no transfer. Link with -lz. */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

enum { PIECE_BYTES = 262144, READS = 8, WRITES = 4, GZIP_FORMAT = 16, MEMORY_LEVEL = 8 };

/* Pieces under way: piece n lies in place n % count of the memory. */
struct pieces {
    dap_session_t session;
    dap_group_t group;
    dap_buffer_t buffer;
    dap_file_t file;
    unsigned char *memory;
    size_t count, bytes[READS];
    uint64_t offsets[READS];
    int64_t results[READS];
    int is_under_way[READS];
};

static void must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "gzip: %s: %s: %s\n", what, dap_error_name(result), dap_last_error());
        exit(1);
    }
}

static void prepare(struct pieces *pieces, dap_session_t session, size_t count)
{
    void *memory;
    pieces->session = session;
    pieces->count = count;
    must(dap_group_create(session, &pieces->group), "group");
    must(dap_buffer_alloc(session, count * PIECE_BYTES, &pieces->buffer, &memory), "buffer");
    pieces->memory = memory;
}

static void release(struct pieces *pieces)
{
    must(dap_group_free(pieces->group), "group");
    must(dap_unregister(pieces->buffer), "buffer");
}

/* Waits for the transfer of a place, and returns its bytes. */
static size_t wait_for(struct pieces *pieces, size_t place)
{
    dap_completion_t done[READS];
    while (pieces->is_under_way[place]) {
        int64_t count = dap_io_wait(pieces->group, done, READS, 1, -1);
        must(count, "wait");
        for (int64_t at = 0; at < count; at++) {
            pieces->results[done[at].user_data] = done[at].result;
            pieces->is_under_way[done[at].user_data] = 0;
        }
    }
    must(pieces->results[place], "a transfer");
    return (size_t)pieces->results[place];
}

/* Starts to read piece `number` of a file of `size` bytes, if it has that many. */
static void read_ahead(struct pieces *input, uint64_t number, uint64_t size)
{
    size_t place = number % input->count;
    uint64_t offset = number * PIECE_BYTES;
    if (offset >= size)
        return;
    input->bytes[place] = size - offset < PIECE_BYTES ? (size_t)(size - offset) : PIECE_BYTES;
    input->offsets[place] = offset;
    input->is_under_way[place] = 1;
    must(dap_async_read(input->group, place, input->file, input->buffer, place * PIECE_BYTES,
                        input->bytes[place], offset, NULL),
         "read");
    /* Else it would be sent with the next call that waits. */
    must(dap_flush(input->session), "flush");
}

/* Waits for the whole piece of a place. */
static void finish_read(struct pieces *input, size_t place)
{
    size_t got = wait_for(input, place);
    while (got < input->bytes[place]) {
        int64_t more = dap_read_buffer(input->file, input->buffer, place * PIECE_BYTES + got,
                                       input->bytes[place] - got, input->offsets[place] + got);
        must(more, "read");
        if (more == 0) {
            fprintf(stderr, "gzip: the file has become shorter\n");
            exit(1);
        }
        got += (size_t)more;
    }
}

/* Waits until the piece of a place is written. */
static void finish_write(struct pieces *output, size_t place)
{
    size_t put = wait_for(output, place);
    if (put < output->bytes[place])
        must(dap_write_buffer(output->file, output->buffer, place * PIECE_BYTES + put,
                              output->bytes[place] - put, output->offsets[place] + put, DAP_UNSTABLE),
             "write");
    output->bytes[place] = 0;
}

/* Starts to write the piece of place `place`, and waits until the next place is free. Returns that. */
static size_t write_behind(struct pieces *output, size_t place, uint64_t *end)
{
    size_t next = (place + 1) % output->count;
    output->offsets[place] = *end;
    output->is_under_way[place] = 1;
    must(dap_async_write(output->group, place, output->file, output->buffer, place * PIECE_BYTES,
                         output->bytes[place], *end, DAP_UNSTABLE, NULL),
         "write");
    must(dap_flush(output->session), "flush");
    *end += output->bytes[place];
    if (output->bytes[next])
        finish_write(output, next);
    return next;
}

/* The place that is filled now, and the bytes that are written or under way. */
struct target {
    struct pieces *output;
    size_t place;
    uint64_t end;
};

/* Packs the input that the stream has, up to the end of the member if it is the last. */
static void pack(z_stream *stream, struct target *target, int is_last)
{
    int state;
    do {
        struct pieces *output = target->output;
        size_t *filled = &output->bytes[target->place];
        if (*filled == PIECE_BYTES) {
            target->place = write_behind(output, target->place, &target->end);
            filled = &output->bytes[target->place];
        }
        stream->next_out = output->memory + target->place * PIECE_BYTES + *filled;
        stream->avail_out = (uInt)(PIECE_BYTES - *filled);
        state = deflate(stream, is_last ? Z_FINISH : Z_NO_FLUSH);
        if (state == Z_STREAM_ERROR) {
            fprintf(stderr, "gzip: zlib has failed\n");
            exit(1);
        }
        *filled = PIECE_BYTES - stream->avail_out;
    } while (state != Z_STREAM_END && (is_last || stream->avail_out == 0));
}

static void pack_file(struct pieces *input, struct target *target)
{
    z_stream stream = { 0 };
    dap_attributes_t attributes;
    must(dap_fstat(input->file, &attributes), "attributes");
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + GZIP_FORMAT, MEMORY_LEVEL,
                     Z_DEFAULT_STRATEGY) != Z_OK) {
        fprintf(stderr, "gzip: no memory for zlib\n");
        exit(1);
    }
    for (uint64_t number = 0; number < input->count; number++)
        read_ahead(input, number, attributes.size);
    for (uint64_t number = 0; number * PIECE_BYTES < attributes.size; number++) {
        size_t place = number % input->count;
        finish_read(input, place);
        stream.next_in = input->memory + place * PIECE_BYTES;
        stream.avail_in = (uInt)input->bytes[place];
        pack(&stream, target, 0);
        read_ahead(input, number + input->count, attributes.size);
    }
    pack(&stream, target, 1);
    deflateEnd(&stream);
}

int main(int argc, char **argv)
{
    struct pieces input = { 0 }, output = { 0 };
    struct target target = { .output = &output };
    dap_session_t session;

    if (argc < 4) {
        fprintf(stderr, "usage: gzip dafs://HOST/PATH TO FROM...\n");
        return 2;
    }
    must(dap_connect(argv[1], NULL, &session), "connect");
    must(dap_open(session, argv[2], DAP_OPEN_WRITE | DAP_OPEN_CREATE | DAP_OPEN_TRUNCATE, 0644,
                  &output.file),
         argv[2]);
    prepare(&input, session, READS);
    prepare(&output, session, WRITES);
    for (int at = 3; at < argc; at++) {
        must(dap_open(session, argv[at], DAP_OPEN_READ | DAP_OPEN_SEQUENTIAL, 0, &input.file), argv[at]);
        pack_file(&input, &target);
        must(dap_close(input.file), argv[at]);
    }
    if (output.bytes[target.place])
        write_behind(&output, target.place, &target.end);
    for (size_t place = 0; place < output.count; place++)
        if (output.bytes[place])
            finish_write(&output, place);
    must(dap_commit(output.file, 0, 0), "commit");
    must(dap_close(output.file), argv[2]);
    release(&input);
    release(&output);
    must(dap_disconnect(session), "disconnect");
    return 0;
}
