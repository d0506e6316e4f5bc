/*
 * gss_seal -- seals messages with the library of Kerberos, and prints what it did: operations, bytes, elapsed and own
 * processor time in nanoseconds.
 *
 *   gss_seal SERVICE BYTES MILLISECONDS
 *
 * SERVICE is host-based, such as nfs@localhost. Both ends of the context are in this process: the environment names the
 * cache with the ticket (KRB5CCNAME) and the keytab (KRB5_KTNAME).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gssapi/gssapi.h>

static void check(OM_uint32 major, OM_uint32 minor, const char *call)
{
	if (GSS_ERROR(major)) {
		fprintf(stderr, "gss_seal: %s: major %#x, minor %u\n", call, major, minor);
		exit(1);
	}
}

static int64_t now_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* The acceptor's end of a new context. */
static gss_ctx_id_t establish(char *service)
{
	gss_buffer_desc name_text = { strlen(service), service };
	gss_buffer_desc token = GSS_C_EMPTY_BUFFER, reply = GSS_C_EMPTY_BUFFER;
	gss_ctx_id_t ours = GSS_C_NO_CONTEXT, theirs = GSS_C_NO_CONTEXT;
	gss_name_t name;
	OM_uint32 major, minor;

	major = gss_import_name(&minor, &name_text, GSS_C_NT_HOSTBASED_SERVICE, &name);
	check(major, minor, "gss_import_name");
	/* Without mutual authentication one token is enough. */
	major = gss_init_sec_context(&minor, GSS_C_NO_CREDENTIAL, &ours, name, GSS_C_NO_OID, 0, 0, NULL, NULL, NULL,
				     &token, NULL, NULL);
	check(major, minor, "gss_init_sec_context");
	major = gss_accept_sec_context(&minor, &theirs, GSS_C_NO_CREDENTIAL, &token, NULL, NULL, NULL, &reply, NULL, NULL,
				       NULL);
	check(major, minor, "gss_accept_sec_context");
	return theirs;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: gss_seal SERVICE BYTES MILLISECONDS\n");
		return 2;
	}
	gss_ctx_id_t context = establish(argv[1]);
	size_t bytes = strtoull(argv[2], NULL, 10);
	int64_t length_ns = atoll(argv[3]) * 1000000;
	char *memory = malloc(bytes);
	if (!memory)
		return 1;
	memset(memory, 7, bytes);
	gss_buffer_desc message = { bytes, memory }, sealed;
	uint64_t operations = 0;
	int64_t began_ns = now_ns(CLOCK_MONOTONIC), began_cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	OM_uint32 major, minor;
	int is_sealed;

	while (now_ns(CLOCK_MONOTONIC) - began_ns < length_ns) {
		major = gss_wrap(&minor, context, 1, GSS_C_QOP_DEFAULT, &message, &is_sealed, &sealed);
		check(major, minor, "gss_wrap");
		if (!is_sealed) {
			fprintf(stderr, "gss_seal: the context seals nothing\n");
			return 1;
		}
		gss_release_buffer(&minor, &sealed);
		operations++;
	}
	printf("%llu %llu %lld %lld\n", (unsigned long long)operations, (unsigned long long)(operations * bytes),
	       (long long)(now_ns(CLOCK_MONOTONIC) - began_ns),
	       (long long)(now_ns(CLOCK_PROCESS_CPUTIME_ID) - began_cpu_ns));
	return 0;
}
