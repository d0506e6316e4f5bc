/*
 * nfs3_load -- drives any NFSv3 server through Debian's libnfs, with a fixed number of calls under
 * way, and prints what it did: operations, bytes, elapsed and own processor time in nanoseconds.
 *
 *   nfs3_load HOST PORT MOUNT_PORT PATH CASE DEPTH MILLISECONDS
 *
 * CASE is one of
 *   random:N  reads of N bytes anywhere in the file "data"
 *   order:N   "data" front to back, N bytes at a time
 *   write1m   the file "written" front to back, unstable
 *   getattr   of "data"
 *   create    in the directory "new"; a second line tells of the removal of what was created
 *   small     create in "new" and write 4 KiB
 *   readdir   READDIRPLUS over the directory "many"; an entry counts as an operation
 *   readdir:N the same once over the directory "many-N", for as long as it takes
 * All of these names must exist.
 *
 * All load comes from one thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>

#define DEPTH_MAX 256
#define NAMES_MAX 4000000
#define MIB (1024 * 1024)

enum kind { RANDOM, ORDER, WRITE1M, GETATTR, CREATE, REMOVE, SMALL, READDIR };

struct load;

struct slot {
	struct load *load;
	uint64_t number; /* of the name, or position in the file */
	char name[32];
};

struct load {
	struct rpc_context *rpc;
	enum kind kind;
	char prefix; /* of new names */
	int depth;
	uint64_t under_way, started, done, bytes, limit;
	int64_t end_ns;
	nfs_fh3 dir, file;
	uint64_t file_bytes, random;
	uint32_t block; /* bytes of a read, or the number of a directory that is listed once */
	char *buffer;
	uint64_t cookie;
	char verifier[8];
	struct slot slots[DEPTH_MAX];
};

static void die(const char *what, const char *why)
{
	fprintf(stderr, "nfs3_load: %s: %s\n", what, why ? why : "");
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t cpu_ns(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000LL +
	       (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000LL;
}

static uint64_t next_random(struct load *l)
{
	/* xorshift: every run reads the same places. */
	l->random ^= l->random << 13;
	l->random ^= l->random >> 7;
	l->random ^= l->random << 17;
	return l->random;
}

static void issue(struct slot *s);

static void finished(struct slot *s)
{
	struct load *l = s->load;
	l->done++;
	l->under_way--;
	issue(s);
}

static void check(const char *what, int rpc_status, int nfs_status)
{
	char text[32];
	if (rpc_status != RPC_STATUS_SUCCESS)
		die(what, "the call failed");
	if (nfs_status != NFS3_OK) {
		snprintf(text, sizeof(text), "status %d", nfs_status);
		die(what, text);
	}
}

static void on_read(struct rpc_context *rpc, int status, void *data, void *private)
{
	struct slot *s = private;
	READ3res *res = data;
	(void)rpc;
	check("READ", status, status ? 0 : res->status);
	s->load->bytes += res->READ3res_u.resok.count;
	finished(s);
}

static void on_write(struct rpc_context *rpc, int status, void *data, void *private)
{
	struct slot *s = private;
	WRITE3res *res = data;
	(void)rpc;
	check("WRITE", status, status ? 0 : res->status);
	s->load->bytes += res->WRITE3res_u.resok.count;
	finished(s);
}

static void on_getattr(struct rpc_context *rpc, int status, void *data, void *private)
{
	GETATTR3res *res = data;
	(void)rpc;
	check("GETATTR", status, status ? 0 : res->status);
	finished(private);
}

static void on_create(struct rpc_context *rpc, int status, void *data, void *private)
{
	struct slot *s = private;
	struct load *l = s->load;
	CREATE3res *res = data;
	WRITE3args args;
	check("CREATE", status, status ? 0 : res->status);
	if (l->kind != SMALL) {
		finished(s);
		return;
	}
	if (!res->CREATE3res_u.resok.obj.handle_follows)
		die("CREATE", "no handle");
	memset(&args, 0, sizeof(args));
	args.file = res->CREATE3res_u.resok.obj.post_op_fh3_u.handle;
	args.count = 4096;
	args.stable = UNSTABLE;
	args.data.data_len = 4096;
	args.data.data_val = l->buffer;
	if (rpc_nfs3_write_async(rpc, on_write, &args, s))
		die("WRITE", "not queued");
}

static void on_remove(struct rpc_context *rpc, int status, void *data, void *private)
{
	REMOVE3res *res = data;
	(void)rpc;
	check("REMOVE", status, status ? 0 : res->status);
	finished(private);
}

static void on_readdir(struct rpc_context *rpc, int status, void *data, void *private)
{
	struct slot *s = private;
	struct load *l = s->load;
	READDIRPLUS3res *res = data;
	struct entryplus3 *entry;
	(void)rpc;
	check("READDIRPLUS", status, status ? 0 : res->status);
	for (entry = res->READDIRPLUS3res_u.resok.reply.entries; entry; entry = entry->nextentry) {
		l->cookie = entry->cookie;
		l->done++;
	}
	memcpy(l->verifier, res->READDIRPLUS3res_u.resok.cookieverf, 8);
	if (res->READDIRPLUS3res_u.resok.reply.eof) {
		l->cookie = 0;
		memset(l->verifier, 0, 8);
		if (l->block)
			l->limit = l->started;
	}
	l->under_way--;
	issue(s);
}

static int issue_data(struct slot *s)
{
	struct load *l = s->load;
	if (l->kind == WRITE1M) {
		WRITE3args w;
		memset(&w, 0, sizeof(w));
		w.file = l->file;
		w.offset = s->number % 256 * MIB;
		w.count = MIB;
		w.stable = UNSTABLE;
		w.data.data_len = MIB;
		w.data.data_val = l->buffer;
		return rpc_nfs3_write_async(l->rpc, on_write, &w, s);
	}
	READ3args r;
	memset(&r, 0, sizeof(r));
	r.file = l->file;
	r.offset = (l->kind == RANDOM ? next_random(l) : s->number) % (l->file_bytes / l->block) * l->block;
	r.count = l->block;
	return rpc_nfs3_read_async(l->rpc, on_read, &r, s);
}

static int issue_create(struct slot *s)
{
	struct load *l = s->load;
	CREATE3args c;
	memset(&c, 0, sizeof(c));
	c.where.dir = l->dir;
	c.where.name = s->name;
	c.how.mode = UNCHECKED;
	c.how.createhow3_u.obj_attributes.mode.set_it = 1;
	c.how.createhow3_u.obj_attributes.mode.set_mode3_u.mode = 0644;
	return rpc_nfs3_create_async(l->rpc, on_create, &c, s);
}

static int issue_readdir(struct slot *s)
{
	struct load *l = s->load;
	READDIRPLUS3args d;
	memset(&d, 0, sizeof(d));
	d.dir = l->file;
	d.cookie = l->cookie;
	memcpy(d.cookieverf, l->verifier, 8);
	d.dircount = 32768;
	d.maxcount = 65536;
	return rpc_nfs3_readdirplus_async(l->rpc, on_readdir, &d, s);
}

/* Starts the next call of a slot, unless the time or the work is over. */
static void issue(struct slot *s)
{
	struct load *l = s->load;
	int failed = 0;
	/* At least one, however late this process runs. */
	if (l->started >= l->limit || (l->started && now_ns() >= l->end_ns))
		return;
	s->number = l->started++;
	snprintf(s->name, sizeof(s->name), "%c%llu", l->prefix,
		 (unsigned long long)s->number);
	switch (l->kind) {
	case RANDOM:
	case ORDER:
	case WRITE1M:
		failed = issue_data(s);
		break;
	case GETATTR: {
		GETATTR3args g;
		g.object = l->file;
		failed = rpc_nfs3_getattr_async(l->rpc, on_getattr, &g, s);
		break;
	}
	case CREATE:
	case SMALL:
		failed = issue_create(s);
		break;
	case REMOVE: {
		REMOVE3args r;
		r.object.dir = l->dir;
		r.object.name = s->name;
		failed = rpc_nfs3_remove_async(l->rpc, on_remove, &r, s);
		break;
	}
	case READDIR:
		failed = issue_readdir(s);
		break;
	}
	if (failed)
		die("a call", "not queued");
	l->under_way++;
}

static void run(struct load *l, int milliseconds, int silent)
{
	int64_t start = now_ns(), start_cpu = cpu_ns();
	int i;
	l->started = l->done = l->bytes = 0;
	l->end_ns = start + milliseconds * 1000000LL;
	for (i = 0; i < l->depth; i++) {
		l->slots[i].load = l;
		issue(&l->slots[i]);
	}
	while (l->under_way > 0) {
		struct pollfd p = { rpc_get_fd(l->rpc), rpc_which_events(l->rpc), 0 };
		if (poll(&p, 1, 10000) <= 0)
			die("poll", "no answer within 10 seconds");
		if (rpc_service(l->rpc, p.revents) < 0)
			die("connection", rpc_get_error(l->rpc));
	}
	if (silent)
		return;
	printf("%llu %llu %lld %lld\n", (unsigned long long)l->done, (unsigned long long)l->bytes,
	       (long long)(now_ns() - start), (long long)(cpu_ns() - start_cpu));
	fflush(stdout);
}

struct found {
	int done;
	nfs_fh3 handle;
	uint64_t size;
};

static void keep_handle(struct found *f, u_int len, const char *bytes)
{
	f->handle.data.data_len = len;
	f->handle.data.data_val = malloc(len);
	memcpy(f->handle.data.data_val, bytes, len);
	f->done = 1;
}

static void await(struct rpc_context *rpc, int *done, const char *what)
{
	while (!*done) {
		struct pollfd p = { rpc_get_fd(rpc), rpc_which_events(rpc), 0 };
		if (poll(&p, 1, 10000) <= 0 || rpc_service(rpc, p.revents) < 0)
			die(what, rpc_get_error(rpc));
	}
}

static void on_connect(struct rpc_context *rpc, int status, void *data, void *private)
{
	(void)data;
	if (status != RPC_STATUS_SUCCESS)
		die("connect", rpc_get_error(rpc));
	*(int *)private = 1;
}

static struct rpc_context *connect_to(const char *host, int port, int program)
{
	struct rpc_context *rpc = rpc_init_context();
	int done = 0;
	if (!rpc || rpc_connect_port_async(rpc, host, port, program, 3, on_connect, &done))
		die(host, "cannot connect");
	await(rpc, &done, "connect");
	return rpc;
}

static void on_mount(struct rpc_context *rpc, int status, void *data, void *private)
{
	mountres3 *res = data;
	(void)rpc;
	check("MNT", status, status ? 0 : (int)res->fhs_status);
	keep_handle(private, res->mountres3_u.mountinfo.fhandle.fhandle3_len,
		    res->mountres3_u.mountinfo.fhandle.fhandle3_val);
}

static void on_lookup(struct rpc_context *rpc, int status, void *data, void *private)
{
	struct found *f = private;
	LOOKUP3res *res = data;
	nfs_fh3 *h;
	(void)rpc;
	check("LOOKUP", status, status ? 0 : (int)res->status);
	h = &res->LOOKUP3res_u.resok.object;
	if (res->LOOKUP3res_u.resok.obj_attributes.attributes_follow)
		f->size = res->LOOKUP3res_u.resok.obj_attributes.post_op_attr_u.attributes.size;
	keep_handle(f, h->data.data_len, h->data.data_val);
}

static struct found look_up(struct load *l, nfs_fh3 dir, char *name)
{
	struct found f = { 0 };
	LOOKUP3args a;
	a.what.dir = dir;
	a.what.name = name;
	if (rpc_nfs3_lookup_async(l->rpc, on_lookup, &a, &f))
		die("LOOKUP", "not queued");
	await(l->rpc, &f.done, "LOOKUP");
	return f;
}

/* Finds the objects that the case works on. */
static void prepare(struct load *l, const char *host, int port, int mount_port, char *path)
{
	struct rpc_context *mount = connect_to(host, mount_port, MOUNT_PROGRAM);
	struct found root = { 0 }, file;
	char many[16];
	if (rpc_mount3_mnt_async(mount, on_mount, path, &root))
		die(path, "cannot mount");
	await(mount, &root.done, "MNT");
	rpc_destroy_context(mount);
	l->rpc = connect_to(host, port, NFS_PROGRAM);
	l->dir = look_up(l, root.handle, "new").handle;
	snprintf(many, sizeof(many), l->block ? "many-%u" : "many", l->block);
	file = look_up(l, root.handle,
		       l->kind == READDIR ? many : l->kind == WRITE1M ? "written" : "data");
	l->file = file.handle;
	l->file_bytes = file.size;
	if ((l->kind == RANDOM || l->kind == ORDER) && l->file_bytes < MIB)
		die("data", "must be 1 MiB or longer");
}

int main(int argc, char **argv)
{
	static const struct { const char *name; enum kind kind; } cases[] = {
		{ "random", RANDOM }, { "order", ORDER }, { "write1m", WRITE1M },
		{ "getattr", GETATTR }, { "create", CREATE }, { "small", SMALL },
		{ "readdir", READDIR },
	};
	static struct load l;
	char *block;
	size_t i;
	if (argc != 8)
		die("usage", "nfs3_load HOST PORT MOUNT_PORT PATH CASE DEPTH MILLISECONDS");
	block = strchr(argv[5], ':');
	if (block)
		*block++ = 0;
	for (i = 0; i < sizeof(cases) / sizeof(*cases) && strcmp(cases[i].name, argv[5]); i++)
		;
	if (i == sizeof(cases) / sizeof(*cases))
		die(argv[5], "no such case");
	l.kind = cases[i].kind;
	l.block = block ? atoi(block) : 0;
	if (l.kind == READDIR ? block && l.block < 1 :
	    (l.kind == RANDOM || l.kind == ORDER) ? l.block < 1 || l.block > MIB : block != NULL)
		die(argv[5], "a read is of 1 byte to 1 MiB, a directory has a number from 1 on, "
			     "and no other case has either");
	/* A listing goes on where its last page ended. */
	l.depth = l.kind == READDIR ? 1 : atoi(argv[6]);
	if (l.depth < 1 || l.depth > DEPTH_MAX)
		die(argv[6], "a depth is 1 to 256");
	l.random = 88172645463325252ULL;
	l.limit = NAMES_MAX;
	l.buffer = calloc(1, MIB);
	if (!l.buffer)
		die("start", "no memory");
	prepare(&l, argv[1], atoi(argv[2]), atoi(argv[3]), argv[4]);
	l.prefix = l.kind == SMALL ? 's' : 'c';
	run(&l, l.kind == READDIR && l.block ? 600000 : atoi(argv[7]), 0);
	if (l.kind == CREATE || l.kind == SMALL) {
		/* Small files go unmeasured: servers keep what was written open. */
		int silent = l.kind == SMALL;
		l.limit = l.started;
		l.kind = REMOVE;
		run(&l, 600000, silent);
	}
	return 0;
}
