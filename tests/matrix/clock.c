/* A wall clock that jumps by an hour, back and forth, several times a second; the monotonic one is left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void jump(long *seconds)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    if (now.tv_nsec / 70000000 % 2) *seconds += now.tv_nsec / 140000000 % 2 ? 3600 : -3600;
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    int code = syscall(SYS_clock_gettime, id, out);
    if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) jump(&out->tv_sec);
    return code;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    int code = syscall(SYS_gettimeofday, out, zone);
    if (code == 0) jump(&out->tv_sec);
    return code;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
