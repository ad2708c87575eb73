/* The real system calls behind fk_vfs. */
#include "vfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

static int posix_open(int dir, const char *path, int flags, mode_t mode) {
    const int follow = flags & FK_VFS_FOLLOW ? 0 : O_NOFOLLOW;
    return openat(dir, path, (flags & ~FK_VFS_FOLLOW) | follow | O_CLOEXEC | O_NOCTTY, mode);
}

static int posix_stat_at(int dir, const char *path, struct stat *out) {
    return fstatat(dir, path, out, AT_SYMLINK_NOFOLLOW);
}

static int posix_link(int dir, const char *from, const char *to) {
    return linkat(dir, from, dir, to, 0);
}
static int posix_rename(int dir, const char *from, const char *to) {
    return renameat(dir, from, dir, to);
}
static int posix_unlink(int dir, const char *path) {
    return unlinkat(dir, path, 0);
}
static int posix_touch(int dir, const char *path) {
    return utimensat(dir, path, NULL, AT_SYMLINK_NOFOLLOW);
}

static int posix_is_remote(int fd) {
    /* NFS, SMB, CIFS, SMB2, AFS, Coda, 9P, Ceph, Lustre, GPFS, FUSE (sshfs and many cluster clients) */
    static const unsigned long remote[] = {0x6969,     0x517b,     0xff534d42, 0xfe534d42, 0x5346414f, 0x73757245,
                                           0x01021997, 0x00c36400, 0x0bd00bd0, 0x47504653, 0x65735546};
    struct statfs fs;
    if (fstatfs(fd, &fs)) return -1;
    for (size_t i = 0; i < sizeof remote / sizeof *remote; ++i)
        if (((unsigned long)fs.f_type & 0xffffffff) == remote[i]) return 1;
    return 0;
}

static int posix_lock(int fd, int64_t offset, int taken) {
    struct flock range = {0};
    range.l_type = taken ? F_WRLCK : F_UNLCK;
    range.l_whence = SEEK_SET;
    range.l_start = (off_t)offset;
    range.l_len = 1;
    return fcntl(fd, F_OFD_SETLK, &range);
}

static time_t posix_now(void) {
    return time(NULL);
}

static void posix_sleep_ms(unsigned ms) {
    const struct timespec wait = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
}

const fk_vfs fk_vfs_posix = {
    .open = posix_open,
    .close = close,
    .read = read,
    .read_at = pread,
    .write = write,
    .fsync = fsync,
    .stat_fd = fstat,
    .stat_at = posix_stat_at,
    .mkdir = mkdirat,
    .link = posix_link,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .touch = posix_touch,
    .list_open = fdopendir,
    .list_next = readdir,
    .list_close = closedir,
    .is_remote = posix_is_remote,
    .lock = posix_lock,
    .resize = realloc,
    .now = posix_now,
    .sleep_ms = posix_sleep_ms,
};
