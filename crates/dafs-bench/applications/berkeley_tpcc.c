/* The transactions of TPC-C on Berkeley DB, by one process or by several that share its environment.
 *
 *   berkeley_tpcc make FOLDER WAREHOUSES ITEMS CUSTOMERS        makes the tables
 *   berkeley_tpcc run FOLDER WAREHOUSES ITEMS CUSTOMERS HOME CACHE PROCESSES COUNT
 *                                                               runs COUNT transactions of PROCESSES
 *   berkeley_tpcc check FOLDER WAREHOUSES ITEMS CUSTOMERS       checks the consistency conditions
 *
 * CUSTOMERS are those of a district, of which a warehouse has ten. CACHE is in bytes and of all processes
 * together. HOME is a new folder for the environment: its regions and its log. The log is not made stable
 * by a commit. A run writes "ready" and its process id before the transactions, and "done" behind them, and
 * waits for a line of its input each time. After that it writes all pages to the tables.
 *
 * Differences to the specification: no terminals, no thinking time, short texts, no index by name beside
 * the customers but a table of names, and the latest order of each customer in a table as well. */
#define _GNU_SOURCE
#include <db.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "berkeley_tpcc.h"

struct scale scale;
DB *tables[TABLES];

static const char *const NAMES[TABLES] = {
    "warehouse.db", "district.db", "customer.db", "name.db", "history.db", "order.db",
    "latest.db", "new_order.db", "line.db", "item.db", "stock.db",
};

void fail(const char *about, int error)
{
    fprintf(stderr, "berkeley_tpcc: %s: %s\n", about, error ? db_strerror(error) : "not as expected");
    exit(1);
}

void broken(int condition, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "berkeley_tpcc: consistency condition %d does not hold: ", condition);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    exit(1);
}

/* The parts in the order of bytes, so that a table is sorted by them. */
struct key make_key(const uint32_t *parts, size_t count)
{
    struct key key = { .size = 4 * count };
    for (size_t at = 0; at < key.size; at++)
        key.bytes[at] = parts[at / 4] >> (24 - at % 4 * 8);
    return key;
}

uint32_t key_part(const struct key *key, size_t at)
{
    const unsigned char *part = key->bytes + 4 * at;
    return (uint32_t)part[0] << 24 | part[1] << 16 | part[2] << 8 | part[3];
}

int get(enum table table, DB_TXN *txn, struct key key, void *record, uint32_t flags)
{
    DBT name = { .data = key.bytes, .size = key.size };
    DBT found = { .data = record, .ulen = RECORD_BYTES[table], .flags = DB_DBT_USERMEM };
    int error = tables[table]->get(tables[table], txn, &name, &found, flags);
    if (!error && found.size != RECORD_BYTES[table])
        fail("the length of a record", 0);
    return error;
}

int put(enum table table, DB_TXN *txn, struct key key, const void *record, uint32_t flags)
{
    DBT name = { .data = key.bytes, .size = key.size };
    DBT content = { .data = (void *)record, .size = RECORD_BYTES[table] };
    return tables[table]->put(tables[table], txn, &name, &content, flags);
}

/* Opens a table, of an environment or alone with `flags`. */
static void open_table(enum table table, DB_ENV *environment, const char *path, uint32_t flags)
{
    int error = db_create(&tables[table], environment, 0);
    DB *handle = tables[table];
    if (!error && !environment)
        error = handle->set_cachesize(handle, 0, ALONE_CACHE_BYTES, 1);
    if (!error && flags & DB_CREATE)
        error = handle->set_pagesize(handle, PAGE_BYTES);
    if (!error)
        error = handle->open(handle, NULL, path, NULL, DB_BTREE, flags, 0644);
    if (error)
        fail(path, error);
}

/* Opens all tables of a folder without an environment. */
static void open_alone(const char *folder, uint32_t flags)
{
    char path[4096];
    for (int table = 0; table < TABLES; table++) {
        snprintf(path, sizeof path, "%s/%s", folder, NAMES[table]);
        open_table(table, NULL, path, flags);
    }
}

static void open_in(DB_ENV *environment)
{
    for (int table = 0; table < TABLES; table++)
        open_table(table, environment, NAMES[table], DB_AUTO_COMMIT);
}

static void close_tables(uint32_t flags)
{
    for (int table = 0; table < TABLES; table++) {
        int error = tables[table]->close(tables[table], flags);
        if (error)
            fail(NAMES[table], error);
    }
}

/* Makes the environment, or with a cache of 0 bytes enters that of another process. */
static DB_ENV *open_environment(const char *home, const char *folder, uint64_t cache)
{
    DB_ENV *environment;
    uint32_t flags = DB_INIT_LOCK | DB_INIT_LOG | DB_INIT_MPOOL | DB_INIT_TXN | (cache ? DB_CREATE : 0);
    int error = db_env_create(&environment, 0);
    if (error)
        fail("an environment", error);
    if (cache && ((error = environment->set_cachesize(environment, cache >> 30, cache & ((1 << 30) - 1), 1)) ||
                  (error = environment->set_lk_max_locks(environment, LOCKS)) ||
                  (error = environment->set_lk_max_objects(environment, LOCKS))))
        fail("the sizes of an environment", error);
    if ((error = environment->set_lk_detect(environment, DB_LOCK_DEFAULT)) ||
        (error = environment->set_data_dir(environment, folder)) ||
        (error = environment->set_flags(environment, DB_TXN_NOSYNC, 1)) ||
        (error = environment->open(environment, home, flags, 0644)))
        fail(home, error);
    return environment;
}

static void close_environment(DB_ENV *environment)
{
    int error = environment->close(environment, 0);
    if (error)
        fail("an environment", error);
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

/* A process that runs its part of the transactions when a byte of its input tells it to. */
static int work(const char *folder, const char *home, uint64_t seed, uint64_t count)
{
    char byte = 0;
    DB_ENV *environment = open_environment(home, folder, 0);
    open_in(environment);
    if (write(STDOUT_FILENO, &byte, 1) != 1 || read(STDIN_FILENO, &byte, 1) != 1)
        return 1;
    transact(environment, seed, count);
    /* Pages stay in the cache that all share. */
    close_tables(DB_NOSYNC);
    close_environment(environment);
    return 0;
}

/* Starts a process whose input is `input`, and waits until it is ready. */
static pid_t start(char **arguments, uint64_t seed, uint64_t count, int input)
{
    char numbers[2][24], byte;
    snprintf(numbers[0], sizeof numbers[0], "%llu", (unsigned long long)seed);
    snprintf(numbers[1], sizeof numbers[1], "%llu", (unsigned long long)count);
    char *words[] = { arguments[0], "work", arguments[2], arguments[3], arguments[4], arguments[5],
                      arguments[6], numbers[0], numbers[1], NULL };
    int told[2];
    if (pipe2(told, O_CLOEXEC))
        fail("a pipe", errno);
    pid_t process = fork();
    if (process < 0)
        fail("a process", errno);
    if (process == 0) {
        if (dup2(input, STDIN_FILENO) < 0 || dup2(told[1], STDOUT_FILENO) < 0)
            _exit(1);
        execv("/proc/self/exe", words);
        _exit(1);
    }
    close(told[1]);
    if (read(told[0], &byte, 1) != 1)
        fail("a process that has started", 0);
    close(told[0]);
    return process;
}

static void run(char **arguments, uint64_t cache, uint64_t processes, uint64_t count)
{
    pid_t started[PROCESSES_MAX];
    int go[2], status;
    DB_ENV *environment = open_environment(arguments[6], arguments[2], cache);
    if (pipe2(go, O_CLOEXEC))
        fail("a pipe", errno);
    for (uint64_t at = 0; at < processes; at++) {
        uint64_t part = count / processes + (at < count % processes);
        started[at] = start(arguments, at + 1, part, go[0]);
    }
    meet("ready");
    if (write(go[1], (char[PROCESSES_MAX]){ 0 }, processes) != (ssize_t)processes)
        fail("a word to all processes", 0);
    for (uint64_t at = 0; at < processes; at++)
        if (waitpid(started[at], &status, 0) < 0 || status)
            fail("the end of a process", 0);
    meet("done");
    open_in(environment);
    close_tables(0);
    close_environment(environment);
}

static int usage(void)
{
    fprintf(stderr, "usage: berkeley_tpcc make|check FOLDER WAREHOUSES ITEMS CUSTOMERS\n"
                    "       berkeley_tpcc run FOLDER WAREHOUSES ITEMS CUSTOMERS HOME CACHE PROCESSES COUNT\n");
    return 2;
}

int main(int count, char **arguments)
{
    uint64_t numbers[3] = { 0 };
    if (count < 6)
        return usage();
    const char *command = arguments[1];
    scale.warehouses = strtoul(arguments[3], NULL, 10);
    scale.items = strtoul(arguments[4], NULL, 10);
    scale.customers = strtoul(arguments[5], NULL, 10);
    for (int at = 7; at < count && at < 10; at++)
        numbers[at - 7] = strtoull(arguments[at], NULL, 10);
    if (!scale.warehouses || scale.items < LINES_MAX || !scale.customers)
        return usage();
    if (count == 6 && !strcmp(command, "make")) {
        open_alone(arguments[2], DB_CREATE | DB_EXCL);
        load();
        close_tables(0);
    } else if (count == 6 && !strcmp(command, "check")) {
        open_alone(arguments[2], DB_RDONLY | DB_NOMMAP);
        check();
        close_tables(0);
    } else if (count == 9 && !strcmp(command, "work")) {
        return work(arguments[2], arguments[6], numbers[0], numbers[1]);
    } else if (count == 10 && !strcmp(command, "run") && numbers[0] >= CACHE_BYTES_MIN && numbers[1] &&
               numbers[1] <= PROCESSES_MAX) {
        run(arguments, numbers[0], numbers[1], numbers[2]);
    } else {
        return usage();
    }
    return 0;
}
