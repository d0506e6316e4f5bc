/* quota.c -- quota DIRECTORY PROJECT BYTES: makes a directory the root of a project that may use so many bytes. */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct fsxattr attributes;
    struct if_dqblk limits = {.dqb_valid = QIF_BLIMITS};
    int directory;

    if (argc != 4)
        errx(2, "usage: quota DIRECTORY PROJECT BYTES");
    directory = open(argv[1], O_RDONLY | O_DIRECTORY);
    if (directory < 0 || ioctl(directory, FS_IOC_FSGETXATTR, &attributes) != 0)
        err(1, "%s", argv[1]);
    attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    attributes.fsx_projid = strtoul(argv[2], NULL, 10);
    if (ioctl(directory, FS_IOC_FSSETXATTR, &attributes) != 0)
        err(1, "project of %s", argv[1]);
    limits.dqb_bhardlimit = strtoull(argv[3], NULL, 10) >> QIF_DQBLKSIZE_BITS;
    if (syscall(SYS_quotactl_fd, directory, QCMD(Q_SETQUOTA, PRJQUOTA), attributes.fsx_projid, &limits) != 0)
        err(1, "quota of project %s", argv[2]);
    return 0;
}
