/* The five transactions of TPC-C (2.4 to 2.8). One that is the victim of a deadlock runs again with the
 * same input. */
#include <time.h>

#include "berkeley_tpcc.h"

/* The error of a transaction that shall have no effect. */
#define ROLLED_BACK (-1)

/* Customers of one last name that are compared. */
#define NAMESAKES_MAX 256

/* Orders that the check of the stock looks at. */
#define LATEST_ORDERS 20

#define TRY(call)              \
    do {                       \
        int error_ = (call);   \
        if (error_)            \
            return error_;     \
    } while (0)

struct client {
    DB_ENV *environment;
    uint64_t random;
    /* That of the transaction. */
    uint32_t warehouse, district;
    /* Its number among the processes, and that of its last payment. */
    uint32_t process, payment;
    /* Items that the stock has few of. */
    uint64_t scarce;
};

typedef int transaction(struct client *client, DB_TXN *txn);

static int compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* Another warehouse, if there is one. */
static uint32_t other_warehouse(struct client *client)
{
    if (scale.warehouses == 1)
        return client->warehouse;
    uint32_t other = random_in(&client->random, 1, scale.warehouses - 1);
    return other + (other >= client->warehouse);
}

/* Takes some of an item from the stock, and adds a line to an order. */
static int order_item(struct client *client, DB_TXN *txn, struct order *order, uint32_t number, uint32_t id,
                      uint32_t order_id)
{
    struct item item;
    struct stock stock;
    uint32_t supplier = client->warehouse, quantity = random_in(&client->random, 1, 10);
    if (random_in(&client->random, 1, 100) == 1)
        supplier = other_warehouse(client);
    int error = get(ITEM, txn, KEY(id), &item, 0);
    if (error)
        return error == DB_NOTFOUND ? ROLLED_BACK : error;
    TRY(get(STOCK, txn, KEY(supplier, id), &stock, DB_RMW));
    stock.quantity += stock.quantity >= quantity + 10 ? 0 : 91;
    stock.quantity -= quantity;
    stock.paid += quantity;
    stock.orders++;
    if (supplier != client->warehouse) {
        stock.remote++;
        order->is_local = 0;
    }
    TRY(put(STOCK, txn, KEY(supplier, id), &stock, 0));
    struct line line = { .item = id, .supplier = supplier, .quantity = quantity,
                         .amount = (int64_t)quantity * item.price };
    memcpy(line.text, stock.districts[client->district - 1], sizeof line.text);
    return put(LINE, txn, KEY(client->warehouse, client->district, order_id, number), &line, DB_NOOVERWRITE);
}

static int new_order(struct client *client, DB_TXN *txn)
{
    struct warehouse warehouse;
    struct district district;
    struct customer customer;
    uint32_t w = client->warehouse, d = client->district, items[LINES_MAX];
    struct order order = { .date = time(NULL), .is_local = 1 };
    order.customer = uneven(&client->random, 1023, 1, scale.customers);
    order.lines = random_in(&client->random, LINES_MIN, LINES_MAX);
    for (uint32_t at = 0; at < order.lines; at++)
        items[at] = uneven(&client->random, 8191, 1, scale.items);
    /* One of a hundred names an item that there is not. */
    if (random_in(&client->random, 1, 100) == 1)
        items[0] = scale.items + 1;
    /* In the same order everywhere, so that few wait for each other. */
    qsort(items, order.lines, sizeof items[0], compare);
    TRY(get(WAREHOUSE, txn, KEY(w), &warehouse, 0));
    TRY(get(DISTRICT, txn, KEY(w, d), &district, DB_RMW));
    uint32_t id = district.next_order++;
    TRY(put(DISTRICT, txn, KEY(w, d), &district, 0));
    TRY(get(CUSTOMER, txn, KEY(w, d, order.customer), &customer, 0));
    for (uint32_t at = 0; at < order.lines; at++)
        TRY(order_item(client, txn, &order, at + 1, items[at], id));
    struct latest latest = { .order = id };
    struct new_order new = { .order = id };
    TRY(put(ORDER, txn, KEY(w, d, id), &order, DB_NOOVERWRITE));
    TRY(put(LATEST, txn, KEY(w, d, order.customer), &latest, 0));
    return put(NEW_ORDER, txn, KEY(w, d, id), &new, DB_NOOVERWRITE);
}

/* The customer in the middle of those with a last name. */
static int by_name(DB_TXN *txn, struct key prefix, uint32_t *customer)
{
    uint32_t found[NAMESAKES_MAX], count = 0;
    struct key key = prefix;
    struct name name;
    DBC *cursor;
    DBT at = { .data = key.bytes, .size = key.size, .ulen = sizeof key.bytes, .flags = DB_DBT_USERMEM };
    DBT content = { .data = &name, .ulen = sizeof name, .flags = DB_DBT_USERMEM };
    TRY(tables[NAME]->cursor(tables[NAME], txn, &cursor, 0));
    int error = cursor->get(cursor, &at, &content, DB_SET_RANGE);
    while (!error && count < NAMESAKES_MAX && !memcmp(key.bytes, prefix.bytes, prefix.size)) {
        found[count++] = name.customer;
        error = cursor->get(cursor, &at, &content, DB_NEXT);
    }
    int closed = cursor->close(cursor);
    if (error && error != DB_NOTFOUND)
        return error;
    if (!count)
        fail("a customer by name", 0);
    *customer = found[(count - 1) / 2];
    return closed;
}

/* A customer of a district: three of five by the last name. */
static int choose(struct client *client, DB_TXN *txn, uint32_t warehouse, uint32_t district, uint32_t *customer)
{
    if (random_in(&client->random, 1, 100) > 60) {
        *customer = uneven(&client->random, 1023, 1, scale.customers);
        return 0;
    }
    uint32_t name = uneven(&client->random, 255, 0, last_names() - 1);
    return by_name(txn, KEY(warehouse, district, name), customer);
}

static int payment(struct client *client, DB_TXN *txn)
{
    struct warehouse warehouse;
    struct district district;
    struct customer customer;
    struct history history = { .warehouse = client->warehouse, .district = client->district };
    uint32_t w = client->warehouse, d = client->district;
    history.amount = random_in(&client->random, 100, 500000);
    /* Some pay at a warehouse that is not their own. */
    if (random_in(&client->random, 1, 100) > 85) {
        history.warehouse = other_warehouse(client);
        history.district = random_in(&client->random, 1, DISTRICTS);
    }
    TRY(get(WAREHOUSE, txn, KEY(w), &warehouse, DB_RMW));
    warehouse.paid += history.amount;
    TRY(put(WAREHOUSE, txn, KEY(w), &warehouse, 0));
    TRY(get(DISTRICT, txn, KEY(w, d), &district, DB_RMW));
    district.paid += history.amount;
    TRY(put(DISTRICT, txn, KEY(w, d), &district, 0));
    TRY(choose(client, txn, history.warehouse, history.district, &history.customer));
    struct key key = KEY(history.warehouse, history.district, history.customer);
    TRY(get(CUSTOMER, txn, key, &customer, DB_RMW));
    customer.balance -= history.amount;
    customer.paid += history.amount;
    customer.payments++;
    TRY(put(CUSTOMER, txn, key, &customer, 0));
    key = KEY(w, d, history.customer, client->process, ++client->payment);
    return put(HISTORY, txn, key, &history, DB_NOOVERWRITE);
}

static int order_status(struct client *client, DB_TXN *txn)
{
    struct customer customer;
    struct latest latest;
    struct order order;
    struct line line;
    uint32_t w = client->warehouse, d = client->district, id;
    TRY(choose(client, txn, w, d, &id));
    TRY(get(CUSTOMER, txn, KEY(w, d, id), &customer, 0));
    TRY(get(LATEST, txn, KEY(w, d, id), &latest, 0));
    TRY(get(ORDER, txn, KEY(w, d, latest.order), &order, 0));
    for (uint32_t at = 1; at <= order.lines; at++)
        TRY(get(LINE, txn, KEY(w, d, latest.order, at), &line, 0));
    return 0;
}

/* Takes the oldest new order of a district; 0 if there is none. */
static int take_oldest(DB_TXN *txn, struct key prefix, uint32_t *order)
{
    struct key key = prefix;
    struct new_order new;
    DBC *cursor;
    DBT at = { .data = key.bytes, .size = key.size, .ulen = sizeof key.bytes, .flags = DB_DBT_USERMEM };
    DBT content = { .data = &new, .ulen = sizeof new, .flags = DB_DBT_USERMEM };
    *order = 0;
    TRY(tables[NEW_ORDER]->cursor(tables[NEW_ORDER], txn, &cursor, 0));
    int error = cursor->get(cursor, &at, &content, DB_SET_RANGE | DB_RMW);
    if (!error && !memcmp(key.bytes, prefix.bytes, prefix.size)) {
        *order = new.order;
        error = cursor->del(cursor, 0);
    }
    int closed = cursor->close(cursor);
    return error && error != DB_NOTFOUND ? error : closed;
}

/* Delivers the oldest new order of a district. */
static int delivery(struct client *client, DB_TXN *txn)
{
    struct customer customer;
    struct order order;
    struct line line;
    uint32_t w = client->warehouse, d = client->district, id;
    int64_t sum = 0;
    TRY(take_oldest(txn, KEY(w, d), &id));
    if (!id)
        return 0;
    TRY(get(ORDER, txn, KEY(w, d, id), &order, DB_RMW));
    order.carrier = random_in(&client->random, 1, 10);
    TRY(put(ORDER, txn, KEY(w, d, id), &order, 0));
    for (uint32_t at = 1; at <= order.lines; at++) {
        TRY(get(LINE, txn, KEY(w, d, id, at), &line, DB_RMW));
        line.delivery = time(NULL);
        sum += line.amount;
        TRY(put(LINE, txn, KEY(w, d, id, at), &line, 0));
    }
    TRY(get(CUSTOMER, txn, KEY(w, d, order.customer), &customer, DB_RMW));
    customer.balance += sum;
    customer.deliveries++;
    return put(CUSTOMER, txn, KEY(w, d, order.customer), &customer, 0);
}

static int stock_level(struct client *client, DB_TXN *txn)
{
    struct district district;
    struct order order;
    struct line line;
    struct stock stock;
    uint32_t w = client->warehouse, d = client->district, items[LATEST_ORDERS * LINES_MAX], count = 0;
    uint32_t few = random_in(&client->random, 10, 20);
    TRY(get(DISTRICT, txn, KEY(w, d), &district, 0));
    uint32_t end = district.next_order, id = end > LATEST_ORDERS ? end - LATEST_ORDERS : 1;
    for (; id < end; id++) {
        TRY(get(ORDER, txn, KEY(w, d, id), &order, 0));
        for (uint32_t at = 1; at <= order.lines; at++) {
            TRY(get(LINE, txn, KEY(w, d, id, at), &line, 0));
            items[count++] = line.item;
        }
    }
    qsort(items, count, sizeof items[0], compare);
    for (uint32_t at = 0; at < count; at++) {
        if (at && items[at] == items[at - 1])
            continue;
        TRY(get(STOCK, txn, KEY(w, items[at]), &stock, 0));
        client->scarce += stock.quantity < few;
    }
    return 0;
}

/* Runs a transaction until it has no deadlock. */
static void attempt(struct client *client, transaction *run, uint32_t flags)
{
    DB_ENV *environment = client->environment;
    uint64_t random = client->random;
    for (;;) {
        DB_TXN *txn;
        client->random = random;
        int error = environment->txn_begin(environment, NULL, &txn, flags);
        if (error)
            fail("the start of a transaction", error);
        error = run(client, txn);
        int ended = error ? txn->abort(txn) : txn->commit(txn, 0);
        if (ended)
            fail("the end of a transaction", ended);
        if (!error || error == ROLLED_BACK)
            return;
        if (error != DB_LOCK_DEADLOCK && error != DB_LOCK_NOTGRANTED)
            fail("a transaction", error);
    }
}

void transact(DB_ENV *environment, uint64_t seed, uint64_t count)
{
    struct client client = { .environment = environment, .random = seed << 32, .process = seed };
    for (uint64_t turn = 0; turn < count; turn++) {
        uint32_t kind = random_in(&client.random, 1, 100);
        client.warehouse = random_in(&client.random, 1, scale.warehouses);
        client.district = random_in(&client.random, 1, DISTRICTS);
        if (kind <= 45)
            attempt(&client, new_order, 0);
        else if (kind <= 88)
            attempt(&client, payment, 0);
        else if (kind <= 92)
            attempt(&client, order_status, 0);
        else if (kind <= 96)
            for (client.district = 1; client.district <= DISTRICTS; client.district++)
                attempt(&client, delivery, 0);
        else
            attempt(&client, stock_level, DB_READ_COMMITTED);
    }
}
