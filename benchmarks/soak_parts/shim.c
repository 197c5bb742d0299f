/* Preloaded into every process of a soak. The first 24 bytes of the file SOAK_CONTROL say what is wrong:
   offset of the time of day and delay of writes, in seconds, and whether the disk is full.
   Only files below SOAK_FOLDER are concerned. Clocks that only measure stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile struct { double clock_offset_s, write_delay_s; int64_t disk_full; } *control;
static const char *folder;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SOAK_CONTROL");
    folder = getenv("SOAK_FOLDER");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) control = page;
}

static int concerned(int fd) {
    if (!control || !folder || (control->write_delay_s <= 0 && !control->disk_full)) return 0;
    char link[64], target[4096];
    int n = 0;
    memcpy(link, "/proc/self/fd/", 14);
    char digits[12];
    do { digits[n++] = '0' + fd % 10; fd /= 10; } while (fd);
    for (int i = 0; i < n; i++) link[14 + i] = digits[n - 1 - i];
    link[14 + n] = 0;
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length <= 0) return 0;
    target[length] = 0;
    return strncmp(target, folder, strlen(folder)) == 0;
}

static int trouble(int fd) {
    if (!concerned(fd)) return 0;
    if (control->disk_full) { errno = ENOSPC; return 1; }
    double delay = control->write_delay_s;
    struct timespec pause = {(time_t)delay, (long)((delay - (time_t)delay) * 1e9)};
    nanosleep(&pause, 0);
    return 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    return trouble(fd) ? -1 : real(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return trouble(fd) ? -1 : real(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return trouble(fd) ? -1 : real(fd, data, size, at);
}
int fsync(int fd) {
    REAL(fsync);
    return trouble(fd) ? -1 : real(fd);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    return trouble(fd) ? -1 : real(fd);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (!result && control && clock == CLOCK_REALTIME) now->tv_sec += (time_t)control->clock_offset_s;
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
