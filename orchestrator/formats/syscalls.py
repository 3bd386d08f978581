"""The classes of system calls that a plan names, which call belongs to which, and how the kernel's tracepoints call
them."""

from __future__ import annotations

_MEMBERS = {
    "file": """
        access acct chdir chmod chown chown32 chroot creat execve execveat faccessat faccessat2 fanotify_mark
        fchmodat fchmodat2 fchownat file_getattr file_setattr fsconfig fspick fstatat64 futimesat getcwd getxattr
        getxattrat inotify_add_watch lchown lchown32 lgetxattr link linkat listxattr listxattrat llistxattr
        lremovexattr lsetxattr lstat lstat64 mkdir mkdirat mknod mknodat mount mount_setattr move_mount
        name_to_handle_at newfstatat oldlstat oldstat open open_tree open_tree_attr openat openat2 pivot_root
        quotactl readlink readlinkat removexattr removexattrat rename renameat renameat2 rmdir setxattr setxattrat
        stat stat64 statfs statfs64 statx swapoff swapon symlink symlinkat truncate truncate64 umount umount2 unlink
        unlinkat uselib utime utimensat utimensat_time64 utimes""",
    "network": """
        accept accept4 bind connect getpeername getpmsg getsockname getsockopt listen putpmsg recv recvfrom recvmmsg
        recvmmsg_time64 recvmsg send sendfile sendfile64 sendmmsg sendmsg sendto setsockopt shutdown
    socket
        socketpair""",
    "process": """
        clone clone3 exit exit_group fork kill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo tgkill tkill
        vfork wait4 waitid waitpid""",
    "memory": """
        break brk get_mempolicy io_destroy io_setup io_uring_register madvise map_shadow_stack mbind migrate_pages
        mincore mlock mlock2 mlockall mmap mmap2 move_pages mprotect mremap mseal msync munlock munlockall munmap
        pkey_mprotect remap_file_pages set_mempolicy set_mempolicy_home_node shmat shmdt""",
    "desc": """
        _llseek _newselect bpf cachestat close copy_file_range dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
        epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 fadvise64 fadvise64_64 fallocate fanotify_init fchdir
        fchmod fchown fchown32 fcntl fcntl64 fdatasync fgetxattr finit_module flistxattr flock fremovexattr
        fsetxattr fsmount fsopen fstat fstat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 getdents getdents64
        inotify_init inotify_init1 inotify_rm_watch io_uring_enter io_uring_setup ioctl kexec_file_load
        landlock_add_rule landlock_create_ruleset landlock_restrict_self lseek memfd_create memfd_secret
        mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64
        oldfstat open_by_handle_at perf_event_open pidfd_getfd pidfd_open pipe pipe2 poll ppoll ppoll_time64 pread64
        preadv preadv2 process_madvise process_mrelease pselect6 pselect6_time64 pwrite64 pwritev pwritev2
        quotactl_fd read readahead readdir readv select setns signalfd signalfd4 socketcall splice sync_file_range
        sync_file_range2 syncfs tee timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime
        timerfd_settime64 userfaultfd vmsplice write writev""",
    "futex": "futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake",
}
"""strace's own classes, found by running every call of the x86-64 and i386 tables (each refused by a seccomp filter)
under `strace -e trace=%CLASS` 6.1; calls younger than that by their flags in strace 6.16's syscallent-common.h. strace
has no class futex: it is the futex family. A call of several classes stands in the first one."""

_KERNELS = {
    "newstat": "stat", "newfstat": "fstat", "newlstat": "lstat", "newuname": "uname", "sendfile64": "sendfile",
    "umount": "umount2",
}  # fmt: skip
"""Calls that the kernel's tracepoints (`syscalls:sys_enter_*`) name after its own functions, and strace's names."""

_USUAL = """
    access chdir execve faccessat faccessat2 getcwd getxattr mkdir mkdirat newfstatat stat lstat open openat readlink
    readlinkat rename renameat2 rmdir statfs statx unlink unlinkat
    accept4 bind connect getsockopt recvfrom recvmmsg recvmsg sendfile sendmmsg sendmsg sendto setsockopt shutdown
    socket
    clone clone3 exit fork kill tgkill vfork wait4 waitid
    brk madvise mmap mprotect mremap msync munmap
    close copy_file_range dup2 epoll_ctl epoll_pwait epoll_wait eventfd2 fcntl fdatasync flock fstat fsync ftruncate
    getdents64 io_uring_enter ioctl lseek pipe2 poll ppoll pread64 preadv pselect6 pwrite64 pwritev read readv select
    splice write writev
    futex
    clock_nanosleep nanosleep sched_yield"""
"""The calls that programs make in numbers, by strace's classes; then those in none of them that stand for waiting."""
USUAL = tuple(_USUAL.split())

_CLASS_OF = {name: kind for kind, names in _MEMBERS.items() for name in names.split()}


def syscall_class(name: str) -> str:
    """file, network, process, memory, desc, futex, or `other`."""
    return _CLASS_OF.get(name, "other")


def tracepoint(name: str) -> str:
    """The tracepoint that the kernel passes when a program makes the call."""
    return f"syscalls:sys_enter_{next((theirs for theirs, ours in _KERNELS.items() if ours == name), name)}"


def of_tracepoint(event: str) -> str | None:
    """The call that an event of perf stands for; None for one that stands for none, or for all."""
    _, is_one, name = event.partition("syscalls:sys_enter_")
    return _KERNELS.get(name, name) if is_one else None
