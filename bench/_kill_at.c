/* Loaded before libc (LD_PRELOAD): counts the calls that change files below a folder, and at the Nth ends the process,
   or from the Nth on says that the disk is full.

   What to do stands in a file that all processes of a trial map (TCL_TRAP); whoever runs the trial writes it.  A write
   that is hit is done by half first, as a power cut or a full disk would.  Calls that reach the kernel without libc's
   public names (stdio's own writes, syscall(2)) are not seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL_PROCESS, KILL_GROUP, DISK_FULL };

struct trap { /* as bench/_trap.py writes it */
  long at, count;
  int mode, fired;
  char below[PATH_MAX], hit[PATH_MAX + 64];
};
static struct trap *trap;

__attribute__((constructor)) static void map_trap(void) {
  const char *path = getenv("TCL_TRAP");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(NULL, sizeof(struct trap), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) trap = mapped;
}

/* The absolute path of `path` as seen from the open folder `at`, or of the open file `at` itself. */
static int resolve(int at, const char *path, char *full) {
  size_t length = 0;
  if (!path || path[0] != '/') {
    char link[64];
    snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
    ssize_t read = readlink(link, full, PATH_MAX - 1);
    if (read < 0) return 0;
    length = (size_t)read;
  }
  full[length] = 0;
  if (path && length + strlen(path) + 2 > PATH_MAX) return 0;
  if (path) snprintf(full + length, PATH_MAX - length, path[0] == '/' ? "%s" : "/%s", path);
  return 1;
}

static int watched(int at, const char *path, char *full) {
  if (!trap || !trap->below[0]) return 0;
  int kept = errno, found = resolve(at, path, full) && strncmp(full, trap->below, strlen(trap->below)) == 0;
  errno = kept;
  return found;
}

enum { GO, HIT_FIRST, FULL };

/* Count one call; what is to be done with it. */
static int step(const char *call, int at, const char *path) {
  char full[PATH_MAX];
  if (!watched(at, path, full)) return GO;
  long number = __atomic_add_fetch(&trap->count, 1, __ATOMIC_SEQ_CST);
  if (trap->mode == COUNT || number < trap->at) return GO;
  if (number == trap->at) {
    snprintf(trap->hit, sizeof trap->hit, "%s %s", call, full + strlen(trap->below));
    trap->fired = 1;
    return HIT_FIRST;
  }
  return trap->mode == DISK_FULL ? FULL : GO;
}

static void die_if_asked(void) {
  if (trap->mode == KILL_PROCESS) kill(getpid(), SIGKILL);
  if (trap->mode == KILL_GROUP) kill(0, SIGKILL);
}

/* Whether a call that needs room is to be refused; does not return where the process is to be killed. */
static int refused(const char *call, int at, const char *path) {
  int what = step(call, at, path);
  if (what == HIT_FIRST) die_if_asked();
  if (what == GO || trap->mode != DISK_FULL) return 0;
  errno = ENOSPC;
  return 1;
}

/* As `refused` for a call that needs none. */
static void counted(const char *call, int at, const char *path) {
  if (step(call, at, path) == HIT_FIRST) die_if_asked();
}

#define REAL(type, name, ...)                        \
  static type (*real)(__VA_ARGS__);                  \
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT); }

#define OPEN(NAME)                                                        \
  int NAME(const char *path, int flags, ...) {                            \
    va_list rest;                                                         \
    va_start(rest, flags);                                                \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                         \
    REAL(int, #NAME, const char *, int, ...);                             \
    if (writes(flags) && refused("open", AT_FDCWD, path)) return -1;      \
    return real(path, flags, mode);                                       \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(NAME)                                                      \
  int NAME(int at, const char *path, int flags, ...) {                    \
    va_list rest;                                                         \
    va_start(rest, flags);                                                \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                         \
    REAL(int, #NAME, int, const char *, int, ...);                        \
    if (writes(flags) && refused("open", at, path)) return -1;            \
    return real(at, path, flags, mode);                                   \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(NAME)                                                                          \
  FILE *NAME(const char *path, const char *mode) {                                           \
    REAL(FILE *, #NAME, const char *, const char *);                                         \
    if (strpbrk(mode, "wa+") && refused("open", AT_FDCWD, path)) return NULL;                \
    return real(path, mode);                                                                 \
  }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int file, const void *data, size_t size) {
  REAL(ssize_t, "write", int, const void *, size_t);
  int what = step("write", file, NULL);
  if (what == HIT_FIRST) {
    ssize_t half = size > 1 ? real(file, data, size / 2) : 0;
    die_if_asked();
    if (half > 0) return half; /* of a disk that is full now */
  }
  if (what != GO && trap->mode == DISK_FULL) return errno = ENOSPC, -1;
  return real(file, data, size);
}

#define PWRITE(NAME, OFFSET)                                                  \
  ssize_t NAME(int file, const void *data, size_t size, OFFSET offset) {      \
    REAL(ssize_t, #NAME, int, const void *, size_t, OFFSET);                  \
    int what = step("write", file, NULL);                                     \
    if (what == HIT_FIRST) {                                                  \
      ssize_t half = size > 1 ? real(file, data, size / 2, offset) : 0;       \
      die_if_asked();                                                         \
      if (half > 0) return half;                                              \
    }                                                                         \
    if (what != GO && trap->mode == DISK_FULL) return errno = ENOSPC, -1;     \
    return real(file, data, size, offset);                                    \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec *, int);
  return refused("write", file, NULL) ? -1 : real(file, parts, count);
}

#define SYNC(NAME)                                          \
  int NAME(int file) {                                      \
    REAL(int, #NAME, int);                                  \
    return refused(#NAME, file, NULL) ? -1 : real(file);    \
  }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(NAME, LENGTH)                 \
  int NAME(int file, LENGTH length) {          \
    REAL(int, #NAME, int, LENGTH);             \
    counted("truncate", file, NULL);           \
    return real(file, length);                 \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  counted("rename", AT_FDCWD, to);
  return real(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
  REAL(int, "renameat", int, const char *, int, const char *);
  counted("rename", b, to);
  return real(a, from, b, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
  counted("rename", b, to);
  return real(a, from, b, to, flags);
}

int unlink(const char *path) {
  REAL(int, "unlink", const char *);
  counted("unlink", AT_FDCWD, path);
  return real(path);
}

int unlinkat(int at, const char *path, int flags) {
  REAL(int, "unlinkat", int, const char *, int);
  counted("unlink", at, path);
  return real(at, path, flags);
}

int rmdir(const char *path) {
  REAL(int, "rmdir", const char *);
  counted("rmdir", AT_FDCWD, path);
  return real(path);
}

int mkdir(const char *path, mode_t mode) {
  REAL(int, "mkdir", const char *, mode_t);
  return refused("mkdir", AT_FDCWD, path) ? -1 : real(path, mode);
}
