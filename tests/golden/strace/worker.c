/* The program behind these recordings: it makes the same system calls on every run.
 * Two threads, a child that kills itself, odd file names, sockets, an interrupted call. Build: cc -O1 -static -pthread worker.c */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int ends[2];

static void *echo(void *unused) /* blocks in read() while the main thread works, so that strace splits its calls */
{
    char byte;
    while (read(ends[0], &byte, 1) == 1 && byte != 'q')
        ;
    return unused;
}

static void on_alarm(int unused) { (void)unused; }

static void odd_names(void)
{
    const char *names[] = {"plain.txt", "two words.txt", "a) = 5 <0.000001>", "quo\"te,comma", "caf\303\251"};
    struct stat info;
    for (int i = 0; i < 5; i++) {
        int file = openat(AT_FDCWD, names[i], O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (write(file, "text with \") = 7 <0.5>\" inside\n", 31) != 31)
            _exit(1);
        close(file);
        stat(names[i], &info);
        unlink(names[i]);
        stat(names[i], &info); /* fails: ENOENT */
    }
}

static void talk(void)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    char text[16];
    int listener = socket(AF_INET, SOCK_STREAM, 0), caller = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (struct sockaddr *)&where, size);
    listen(listener, 1);
    getsockname(listener, (struct sockaddr *)&where, &size);
    connect(caller, (struct sockaddr *)&where, size);
    int answer = accept(listener, 0, 0);
    send(caller, "hello", 5, 0);
    recv(answer, text, sizeof text, 0);
    close(answer);
    close(caller);
    close(listener);
}

static void child(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        usleep(2000);
        raise(SIGKILL);
    }
    waitpid(pid, &status, 0);
}

int main(void)
{
    pthread_t thread;
    struct itimerval soon = {.it_value.tv_usec = 20000};
    struct sigaction action = {.sa_handler = on_alarm};
    if (pipe(ends) != 0)
        return 1;
    pthread_create(&thread, 0, echo, 0);
    odd_names();
    for (int i = 0; i < 5; i++) {
        usleep(500);
        if (write(ends[1], "x", 1) != 1)
            return 1;
    }
    child();
    talk();
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &soon, 0);
    poll(0, 0, 10000); /* interrupted: EINTR */
    usleep(500);
    if (write(ends[1], "q", 1) != 1)
        return 1;
    pthread_join(thread, 0);
    return 7;
}
