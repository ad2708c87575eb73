/* Every act of the store on the outside world: files, memory, time. One table of functions, so that a test can fail or
 * crash at the n-th call. The functions keep the meaning of the system calls they are named after: -1 or null and errno
 * on failure; open and stat_at never follow a link in the last component unless FK_VFS_FOLLOW is given. */
#ifndef FK_CACHE_VFS_H
#define FK_CACHE_VFS_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#define FK_VFS_FOLLOW 0x40000000 /* an extra flag of open; no O_ flag has this bit */

typedef struct fk_vfs {
    int (*open)(int dir, const char *path, int flags, mode_t mode); /* close-on-exec */
    int (*close)(int fd);
    ssize_t (*read)(int fd, void *bytes, size_t size);
    ssize_t (*read_at)(int fd, void *bytes, size_t size, off_t offset);
    ssize_t (*write)(int fd, const void *bytes, size_t size);
    int (*fsync)(int fd);
    int (*stat_fd)(int fd, struct stat *out);
    int (*stat_at)(int dir, const char *path, struct stat *out);
    int (*mkdir)(int dir, const char *path, mode_t mode);
    int (*link)(int dir, const char *from, const char *to);
    int (*rename)(int dir, const char *from, const char *to);
    int (*unlink)(int dir, const char *path);
    int (*touch)(int dir, const char *path);
    DIR *(*list_open)(int fd); /* owns fd on success */
    struct dirent *(*list_next)(DIR *list);
    int (*list_close)(DIR *list);
    int (*is_remote)(int fd);                       /* 1 on a file system that other machines mount too */
    int (*lock)(int fd, int64_t offset, int taken); /* one byte, exclusive, of the open file description; never waits */
    void *(*resize)(void *memory, size_t size);     /* realloc; released by free */
    time_t (*now)(void);
    void (*sleep_ms)(unsigned ms);
} fk_vfs;

extern const fk_vfs fk_vfs_posix;

#endif
