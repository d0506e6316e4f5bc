/* A table of Berkeley DB's, looked at by a program whose own cache is smaller than it, or not.
 *
 *   berkeley_db make FILE RECORDS            makes the table
 *   berkeley_db look FILE RECORDS CACHE N    looks N keys up, each chosen at random
 *   berkeley_db scan FILE RECORDS CACHE      goes through all with a cursor
 *
 * CACHE is in bytes. Nothing is in it at first. Every record is compared with what it should be, and the
 * program fails when one is not. */
#include <db.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES 1000
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

static void make_value(unsigned char value[VALUE_BYTES], uint64_t number)
{
    uint64_t word = mix(number);
    for (int at = 0; at < VALUE_BYTES; at += 8, word = mix(word))
        memcpy(value + at, &word, 8);
}

static DB *open_table(const char *path, uint64_t cache, uint32_t flags)
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
    /* All goes through its cache, also where the table is so small that it would be mapped. */
    if ((error = table->open(table, NULL, path, NULL, DB_BTREE, flags | DB_NOMMAP, 0644)))
        fail(path, error);
    return table;
}

static void make(const char *path, uint64_t records)
{
    unsigned char key[8], value[VALUE_BYTES];
    DB *table = open_table(path, 64 << 20, DB_CREATE | DB_EXCL);
    for (uint64_t number = 0; number < records; number++) {
        DBT name = { .data = key, .size = sizeof key }, content = { .data = value, .size = sizeof value };
        make_key(key, number);
        make_value(value, number);
        int error = table->put(table, NULL, &name, &content, 0);
        if (error)
            fail("a record that is made", error);
    }
    int error = table->close(table, 0);
    if (error)
        fail(path, error);
}

static void compare(const DBT *found, uint64_t number)
{
    unsigned char value[VALUE_BYTES];
    make_value(value, number);
    if (found->size != sizeof value || memcmp(found->data, value, sizeof value))
        fail("a record", 0);
}

static void look(DB *table, uint64_t records, uint64_t count)
{
    unsigned char key[8], value[VALUE_BYTES];
    for (uint64_t turn = 0; turn < count; turn++) {
        uint64_t number = mix(turn) % records;
        DBT name = { .data = key, .size = sizeof key };
        DBT found = { .data = value, .ulen = sizeof value, .flags = DB_DBT_USERMEM };
        make_key(key, number);
        int error = table->get(table, NULL, &name, &found, 0);
        if (error)
            fail("a record that is looked up", error);
        compare(&found, number);
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
        compare(&found, number++);
    }
    if (error != DB_NOTFOUND)
        fail("the next record", error);
    if (number != records)
        fail("the number of records", 0);
    if ((error = cursor->close(cursor)))
        fail("a cursor", error);
}

int main(int count, char **arguments)
{
    uint64_t numbers[3] = { 0 };
    for (int at = 3; at < count && at < 6; at++)
        numbers[at - 3] = strtoull(arguments[at], NULL, 10);
    if (count == 4 && !strcmp(arguments[1], "make") && numbers[0]) {
        make(arguments[2], numbers[0]);
        return 0;
    }
    int looks = count == 6 && !strcmp(arguments[1], "look");
    if (!numbers[0] || !(looks || (count == 5 && !strcmp(arguments[1], "scan")))) {
        fprintf(stderr, "usage: berkeley_db make|look|scan FILE RECORDS [CACHE [LOOKUPS]]\n");
        return 2;
    }
    DB *table = open_table(arguments[2], numbers[1], DB_RDONLY);
    if (looks)
        look(table, numbers[0], numbers[2]);
    else
        scan(table, numbers[0]);
    int error = table->close(table, 0);
    if (error)
        fail(arguments[2], error);
    return 0;
}
