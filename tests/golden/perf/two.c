/* Spends twice as long in two() as in one(); with a second argument also in a forked child and in a thread. Ends in 7. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

volatile double sink;

static inline __attribute__((always_inline)) void spin(long n) {
    double x = 1;
    for (long i = 0; i < n; i++) x = x * 1.0000001 + 0.1;
    sink = x;
}

__attribute__((noinline)) void one(long n) { spin(n); }
__attribute__((noinline)) void two(long n) { spin(2 * n); }

__attribute__((noinline)) void work(long n) {
    for (int i = 0; i < 10; i++) {
        one(n / 10);
        two(n / 10);
    }
    sink += 1;
}

static void *thread(void *n) {
    work(*(long *)n);
    return NULL;
}

int main(int argc, char **argv) {
    long n = atol(argv[1]);
    if (argc > 2) {
        if (!fork()) {
            work(n);
            _exit(0);
        }
        pthread_t id;
        pthread_create(&id, NULL, thread, &n);
        pthread_join(id, NULL);
        wait(NULL);
    }
    work(n);
    return 7;
}
