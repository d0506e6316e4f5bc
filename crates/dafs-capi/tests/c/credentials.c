/* credentials.c URL TRANSPORT -- the application provides the user: anna, whose password is secret. */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

struct who {
    const char *user, *password;
    int asked;
};

static int told(void *context, char *user, char *password)
{
    struct who *who = context;

    who->asked++;
    strcpy(user, who->user);
    strcpy(password, who->password);
    return 0;
}

static int endless(void *context, char *user, char *password)
{
    (void)context;
    strcpy(user, "anna");
    memset(password, 's', DAP_PASSWORD_BYTES);
    return 0;
}

int main(int argc, char **argv)
{
    dap_options_t options;
    dap_session_t session;
    dap_attributes_t attributes;
    struct who who = { "anna", "secret", 0 };

    if (argc < 3)
        return 2;
    expect(dap_options_init(&options), 0);
    options.transport = (uint32_t)atoi(argv[2]);
    options.credentials = told;
    options.context = &who;
    expect(dap_connect(argv[1], &options, &session), 0);
    expect(who.asked, 1);
    expect(dap_create_file(session, "of-anna", 0600, "hers", 4, DAP_FILE_SYNC), 0);
    expect(dap_stat(session, "of-anna", 0, &attributes), 0);
    expect(dap_remove(session, "of-anna"), 0);
    expect(dap_disconnect(session), 0);

    who.password = "wrong";
    expect(dap_connect(argv[1], &options, &session), DAP_E_CONNECT);
    expect(who.asked, 2);
    who.user = "nobody";
    who.password = "secret";
    expect(dap_connect(argv[1], &options, &session), DAP_E_CONNECT);
    options.credentials = endless;
    expect(dap_connect(argv[1], &options, &session), DAP_E_CONNECT);
    expect(strstr(dap_last_error(), "does not end") != NULL, 1);

    /* The same without a callback, and not both. */
    options.user = "anna";
    expect(dap_connect(argv[1], &options, &session), DAP_E_INVALID);
    options.credentials = NULL;
    expect(dap_connect(argv[1], &options, &session), DAP_E_INVALID);
    options.password = "secret";
    expect(dap_connect(argv[1], &options, &session), 0);
    expect(dap_disconnect(session), 0);
    options.password = "wrong";
    expect(dap_connect(argv[1], &options, &session), DAP_E_CONNECT);
    puts("done");
    return 0;
}
