/* A table of Berkeley DB's, looked at by a program whose own cache is smaller than it, or not.
 *
 *   berkeley_db make FILE RECORDS                 makes the table
 *   berkeley_db look FILE RECORDS CACHE N         looks N keys up, each chosen at random
 *   berkeley_db look FILE RECORDS CACHE N WARM    the same after WARM other keys
 *   berkeley_db scan FILE RECORDS CACHE           goes through all with a cursor
 *   berkeley_db fill FILE RECORDS BYTES           makes a queue of records of BYTES
 *   berkeley_db walk FILE RECORDS CACHE BYTES OPEN
 *                                                 goes through the queue; OPEN is 1 if the file is open for
 *                                                 writing as well, and else 0
 *
 * CACHE is in bytes. Nothing is in it at first. Every record is compared with what it should be, and the
 * program fails when one is not. With WARM, and for a walk, the program writes "ready" and its process id
 * before the work, and "done" behind it, and waits for a line of its input each time. */
#include <db.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_BYTES 1000
#define VALUE_BYTES_MOST 8192
#define PAGE_BYTES 16384
#define CACHE_BYTES_LEAST (1 << 20)

static void fail(const char *what, int error)
{
    fprintf(stderr, "berkeley_db: %s: %s\n", what, error ? db_strerror(error) : "not what it should be");
    exit(1);
}

/* A number in which each bit depends on all of what it is made of. */
static uint64_t mix(uint64_t of)
{
    of += 0x9e3779b97f4a7c15;
    of = (of ^ (of >> 30)) * 0xbf58476d1ce4e5b9;
    of = (of ^ (of >> 27)) * 0x94d049bb133111eb;
    return of ^ (of >> 31);
}

/* The table is in the order of bytes, so the highest one comes first. */
static void make_key(unsigned char key[8], uint64_t number)
{
    for (int at = 0; at < 8; at++)
        key[at] = number >> (56 - 8 * at);
}

/* `bytes` is a multiple of 8. */
static void make_value(unsigned char *value, uint64_t number, size_t bytes)
{
    uint64_t word = mix(number);
    for (size_t at = 0; at < bytes; at += 8, word = mix(word))
        memcpy(value + at, &word, 8);
}

/* `record` is the length of a queue's records, and 0 for the table. */
static DB *open_file(const char *path, uint32_t record, uint64_t cache, uint32_t flags)
{
    DB *table;
    int error = db_create(&table, NULL, 0);
    if (error)
        fail("a handle", error);
    if (cache < CACHE_BYTES_LEAST)
        cache = CACHE_BYTES_LEAST;
    if ((error = table->set_cachesize(table, cache >> 30, cache & ((1 << 30) - 1), 1)))
        fail("its cache", error);
    if ((error = table->set_pagesize(table, PAGE_BYTES)))
        fail("its pages", error);
    if (record && (error = table->set_re_len(table, record)))
        fail("the length of its records", error);
    /* All goes through its cache, also where the table is so small that it would be mapped. */
    DBTYPE type = record ? DB_QUEUE : DB_BTREE;
    if ((error = table->open(table, NULL, path, NULL, type, flags | DB_NOMMAP, 0644)))
        fail(path, error);
    return table;
}

static void make(const char *path, uint64_t records)
{
    unsigned char key[8], value[VALUE_BYTES];
    DB *table = open_file(path, 0, 64 << 20, DB_CREATE | DB_EXCL);
    for (uint64_t number = 0; number < records; number++) {
        DBT name = { .data = key, .size = sizeof key }, content = { .data = value, .size = sizeof value };
        make_key(key, number);
        make_value(value, number, sizeof value);
        int error = table->put(table, NULL, &name, &content, 0);
        if (error)
            fail("a record that is made", error);
    }
    int error = table->close(table, 0);
    if (error)
        fail(path, error);
}

static void fill(const char *path, uint64_t records, uint32_t bytes)
{
    unsigned char value[VALUE_BYTES_MOST];
    DB *queue = open_file(path, bytes, 64 << 20, DB_CREATE | DB_EXCL);
    for (uint64_t number = 0; number < records; number++) {
        DBT name = { 0 }, content = { .data = value, .size = bytes };
        make_value(value, number, bytes);
        int error = queue->put(queue, NULL, &name, &content, DB_APPEND);
        if (error)
            fail("a record that is appended", error);
    }
    int error = queue->close(queue, 0);
    if (error)
        fail(path, error);
}

static void compare(const DBT *found, uint64_t number, size_t bytes)
{
    unsigned char value[VALUE_BYTES_MOST];
    make_value(value, number, bytes);
    if (found->size != bytes || memcmp(found->data, value, bytes))
        fail("a record", 0);
}

/* Tells the parent how far the program is, and waits for its word. */
static void meet(const char *word)
{
    char line[16];
    printf("%s %ld\n", word, (long)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(1);
}

static void look(DB *table, uint64_t records, uint64_t first, uint64_t count)
{
    unsigned char key[8], value[VALUE_BYTES];
    for (uint64_t turn = first; turn < first + count; turn++) {
        uint64_t number = mix(turn) % records;
        DBT name = { .data = key, .size = sizeof key };
        DBT found = { .data = value, .ulen = sizeof value, .flags = DB_DBT_USERMEM };
        make_key(key, number);
        int error = table->get(table, NULL, &name, &found, 0);
        if (error)
            fail("a record that is looked up", error);
        compare(&found, number, VALUE_BYTES);
    }
}

static void scan(DB *table, uint64_t records)
{
    unsigned char key[8];
    uint64_t number = 0;
    DBT name = { 0 }, found = { 0 };
    DBC *cursor;
    int error = table->cursor(table, NULL, &cursor, 0);
    if (error)
        fail("a cursor", error);
    while ((error = cursor->get(cursor, &name, &found, DB_NEXT)) == 0) {
        make_key(key, number);
        if (name.size != sizeof key || memcmp(name.data, key, sizeof key))
            fail("the order of the keys", 0);
        compare(&found, number++, VALUE_BYTES);
    }
    if (error != DB_NOTFOUND)
        fail("the next record", error);
    if (number != records)
        fail("the number of records", 0);
    if ((error = cursor->close(cursor)))
        fail("a cursor", error);
}

static void walk(DB *queue, uint64_t records, uint32_t bytes)
{
    uint64_t number = 0;
    DBT name = { 0 }, found = { 0 };
    DBC *cursor;
    int error = queue->cursor(queue, NULL, &cursor, 0);
    if (error)
        fail("a cursor", error);
    while ((error = cursor->get(cursor, &name, &found, DB_NEXT)) == 0) {
        db_recno_t at;
        if (name.size != sizeof at)
            fail("a record's number", 0);
        memcpy(&at, name.data, sizeof at);
        compare(&found, number++, bytes);
        if (at != number)
            fail("the order of the records", 0);
    }
    if (error != DB_NOTFOUND)
        fail("the next record", error);
    if (number != records)
        fail("the number of records", 0);
    if ((error = cursor->close(cursor)))
        fail("a cursor", error);
}

static int usage(void)
{
    fprintf(stderr, "usage: berkeley_db make|look|scan FILE RECORDS [CACHE [LOOKUPS [WARM]]]\n"
                    "       berkeley_db fill FILE RECORDS BYTES\n"
                    "       berkeley_db walk FILE RECORDS CACHE BYTES OPEN\n");
    return 2;
}

int main(int count, char **arguments)
{
    uint64_t numbers[4] = { 0 };
    for (int at = 3; at < count && at < 7; at++)
        numbers[at - 3] = strtoull(arguments[at], NULL, 10);
    const char *command = count > 1 ? arguments[1] : "";
    if (count < 4 || count > 7 || !numbers[0])
        return usage();
    uint64_t records = numbers[0];
    DB *table;
    if (count == 4 && !strcmp(command, "make")) {
        make(arguments[2], records);
        return 0;
    } else if (count == 5 && !strcmp(command, "fill")) {
        if (!numbers[1] || numbers[1] % 8 || numbers[1] > VALUE_BYTES_MOST)
            fail("a record is 8 to 8192 bytes, in steps of 8; its length", 0);
        fill(arguments[2], records, numbers[1]);
        return 0;
    } else if (count == 5 && !strcmp(command, "scan")) {
        table = open_file(arguments[2], 0, numbers[1], DB_RDONLY);
        scan(table, records);
    } else if (count == 6 && !strcmp(command, "look")) {
        table = open_file(arguments[2], 0, numbers[1], DB_RDONLY);
        look(table, records, 0, numbers[2]);
    } else if (count == 7 && !strcmp(command, "look")) {
        table = open_file(arguments[2], 0, numbers[1], DB_RDONLY);
        look(table, records, 0, numbers[3]);
        meet("ready");
        look(table, records, numbers[3], numbers[2]);
        meet("done");
    } else if (count == 7 && !strcmp(command, "walk")) {
        if (!numbers[2] || numbers[2] % 8 || numbers[2] > VALUE_BYTES_MOST)
            fail("a record is 8 to 8192 bytes, in steps of 8; its length", 0);
        table = open_file(arguments[2], numbers[2], numbers[1], numbers[3] ? 0 : DB_RDONLY);
        meet("ready");
        walk(table, records, numbers[2]);
        meet("done");
    } else {
        return usage();
    }
    int error = table->close(table, 0);
    if (error)
        fail(arguments[2], error);
    return 0;
}
