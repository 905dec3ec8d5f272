"""Which system calls a session may make: frozen values, reviewed against Docker's default profile.

Every call of both tables is in exactly one of `ALLOWED`, `RULES`, `HIDDEN` and `DENIED`, and a test
holds that: a new call in a table needs a decision here.

**Docker allows to a container without added capabilities, we don't** (the reasons stand beside each
in `DENIED` and `RULES`):

- ptrace, process_vm_readv, process_vm_writev, seccomp: the attacks between processes of one uid;
- io_setup and its family: their number is one count for the machine;
- modify_ldt, get_thread_area, set_thread_area, and i386, x32 and arm calls altogether: no 32 bit
  program runs here, and their entry paths had their share of holes; personality(PER_LINUX32) too;
- name_to_handle_at, fanotify_mark, process_mrelease, adjtimex, clock_adjtime, remap_file_pages,
  memfd_secret, listmount, statmount: of no use to a session;
- sockets of other families than unix, internet and routing, of other protocols than TCP, UDP and
  ping, and raw ones; socketpair of anything but unix: each loads or reaches a module of its own;
- ioctl: TIOCSTI, TIOCLINUX (typing into a terminal), TIOCSETD (line disciplines), and setting file
  attributes (leaving a project quota);
- prctl: PR_SET_SECCOMP, PR_SET_MM, PR_SCHED_CORE;
- changing RLIMIT_CORE.

**Docker's profile doesn't name them, we allow them:** rseq_slice_yield and uprobe; see below.

**The answers differ too:** Docker's is EPERM for nearly everything. Here a call that a program
would try first and replace by an older one gets ENOSYS (`HIDDEN`), as every unknown one does.
"""

from __future__ import annotations

import errno

from ._bpf import ALLOW, Case, Check, Rule, error

EPERM = error(errno.EPERM)
ENOSYS = error(errno.ENOSYS)
DONE = error(0)

# AUDIT_ARCH numbers, and from where call numbers belong to another interface of the same CPU (x32).
AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
FOREIGN_FROM = {"x86_64": 0x4000_0000, "aarch64": 2**32}

ALLOWED = frozenset(
    """
    accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
    clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup
    dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
    eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod
    fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr
    fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake
    futimesat get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
    getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
    getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioprio_get ioprio_set kill
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat
    listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise
    map_shadow_stack membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2
    mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink
    mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat
    open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free
    pkey_mprotect poll ppoll pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read
    readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr removexattrat rename
    renameat renameat2 restart_syscall rmdir rseq rseq_slice_yield rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
    sched_setscheduler sched_yield select semctl semget semop semtimedop sendfile sendmmsg sendmsg
    sendto set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid
    setpriority setregid setresgid setresuid setreuid setsid setsockopt setuid setxattr setxattrat
    shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 splice stat statfs statx
    symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete
    timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
    times tkill truncate umask uname unlink unlinkat uprobe uretprobe utime utimensat utimes vfork
    vmsplice wait4 waitid write writev
    """.split()
)
# uretprobe and uprobe: when the operator traces our libraries the kernel makes processes call them,
# and takes them from nowhere else; refused, the traced process crashes. rseq_slice_yield gives up
# the CPU. set*id, mknod and the like do, without capabilities, only what is harmless.

# "There is no such call": callers then take another way, or the kernel has none behind the number.
HIDDEN = frozenset(
    """
    clone3 file_getattr file_setattr listmount listns statmount
    _sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms getpmsg
    lookup_dcookie nfsservctl putpmsg query_module security tuxcall uselib vserver
    """.split()
)
# clone3 has its flags behind a pointer, where no filter sees them. file_setattr is the attributes'
# ioctl of `RULES` by another name.

DENIED = {
    "looks into or drives another process": """
        kcmp pidfd_getfd process_madvise process_mrelease process_vm_readv process_vm_writev ptrace
    """,
    "makes, enters or rearranges namespaces and mounts": """
        chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree
        open_tree_attr pivot_root setns umount2 unshare
    """,
    "gives programs, rings or faults to the kernel, the source of most escapes": """
        bpf io_uring_enter io_uring_register io_uring_setup perf_event_open seccomp userfaultfd
    """,
    "keys are kept by uid, beside every namespace": "add_key keyctl request_key",
    "counts against fs.aio-max-nr, one number for the machine": """
        io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit
    """,
    "locks memory that can't be swapped or read, and keeps the machine from hibernating": """
        memfd_secret
    """,
    "32 bit programs only": "get_thread_area modify_ldt set_thread_area",
    "opens or watches files beside the paths of the mount namespace": """
        fanotify_init fanotify_mark name_to_handle_at open_by_handle_at
    """,
    "the machine's: clock, names, modules, swap, accounting, ports, logs, quotas, NUMA": """
        acct adjtimex clock_adjtime clock_settime delete_module finit_module get_mempolicy
        init_module ioperm iopl kexec_file_load kexec_load lsm_get_self_attr lsm_list_modules
        lsm_set_self_attr mbind migrate_pages move_pages quotactl quotactl_fd reboot
        set_mempolicy set_mempolicy_home_node setdomainname sethostname settimeofday swapoff swapon
        syslog vhangup
    """,
    "obsolete, and emulated": "remap_file_pages sysfs ustat",
}

# All but CLONE_NEWTIME, which clone can't ask for: its bit is part of the exit signal there.
_NEW_NAMESPACES = 0x7E02_0000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_INTERNET = Check(0, (_AF_INET, _AF_INET6))
_SOCK_TYPE = 0xF  # the rest is SOCK_NONBLOCK and SOCK_CLOEXEC
_STREAM, _DATAGRAM, _RAW = 1, 2, 3
_ANY, _ICMP, _TCP, _UDP, _ICMPV6 = 0, 1, 6, 17, 58
_NETLINK_ROUTE = 0

_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
# A file's owner could take it out of the project whose quota bounds the workspace.
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR = 0x4008_6602, 0x401C_5820

_PR_SET_SECCOMP, _PR_SET_MM = 22, 35
_PR_SCHED_CORE = 62  # a cookie of one's own keeps neighbours off the sibling CPU

_PERSONALITIES = (0, 0x0002_0000, 0xFFFF_FFFF)  # PER_LINUX, UNAME26, "which is it?"

# A core limit of 1 is the only one that keeps the kernel from starting a core handler as root
# (see rlimits.py), so that nobody may change it; who turns dumps off is told that they are off.
_RLIMIT_CORE = 4

RULES = {
    "clone": Rule((Case((Check(0, mask=_NEW_NAMESPACES),), EPERM),), ALLOW),
    "ioctl": Rule(
        (
            Case(
                (
                    Check(
                        1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR)
                    ),
                ),
                EPERM,
            ),
        ),
        ALLOW,
    ),
    "personality": Rule((Case((Check(0, _PERSONALITIES),), ALLOW),), EPERM),
    "prctl": Rule(
        (Case((Check(0, (_PR_SET_SECCOMP, _PR_SET_MM, _PR_SCHED_CORE)),), EPERM),), ALLOW
    ),
    "prlimit64": Rule(
        (
            Case((Check(1, (_RLIMIT_CORE,)), Check(2, (0,)), Check(2, (0,), high=True)), ALLOW),
            Case((Check(1, (_RLIMIT_CORE,)), Check(3, (0,)), Check(3, (0,), high=True)), DONE),
            Case((Check(1, (_RLIMIT_CORE,)),), EPERM),
        ),
        ALLOW,
    ),
    "setrlimit": Rule((Case((Check(0, (_RLIMIT_CORE,)),), DONE),), ALLOW),
    "socket": Rule(
        (
            Case((Check(0, (_AF_UNIX,)),), ALLOW),
            Case((Check(0, (_AF_NETLINK,)), Check(2, (_NETLINK_ROUTE,))), ALLOW),
            Case(
                (
                    _INTERNET,
                    Check(1, (_STREAM, _DATAGRAM), _SOCK_TYPE),
                    Check(2, (_ANY, _ICMP, _TCP, _UDP, _ICMPV6)),
                ),
                ALLOW,
            ),
            Case((_INTERNET, Check(1, (_RAW,), _SOCK_TYPE)), EPERM),
            Case((_INTERNET,), error(errno.EPROTONOSUPPORT)),
        ),
        error(errno.EAFNOSUPPORT),
    ),
    "socketpair": Rule((Case((Check(0, (_AF_UNIX,)),), ALLOW),), error(errno.EAFNOSUPPORT)),
}
