"""
Remove the privileges that model-written code must not have: starting processes, using the network, changing files.

Linux's seccomp denies system calls, permanently and for all child processes
([manual](https://www.kernel.org/doc/html/latest/userspace-api/seccomp_filter.html)). The list contains the denied
calls, because an interpreter needs hundreds of others. It is a second line of defence behind bubblewrap, and the only
one without bubblewrap.
"""

import ctypes
import os
import resource
import struct
import sys


# The denied system calls, and their numbers on each machine of `MACHINES`; "-" where there is none.
TABLE = """
# processes
clone 56 220
clone3 435 435
fork 57 -
vfork 58 -
execve 59 221
execveat 322 281
kill 62 129
tkill 200 130
tgkill 234 131
rt_sigqueueinfo 129 138
rt_tgsigqueueinfo 297 240
pidfd_send_signal 424 424
pidfd_getfd 438 438
ptrace 101 117
process_vm_readv 310 270
process_vm_writev 311 271
setsid 112 157
setpgid 109 154
unshare 272 97
setns 308 268
prlimit64 302 261
setpriority 141 140
sched_setaffinity 203 122
sched_setscheduler 144 119
sched_setattr 314 274
# connections, and memory that outlives a process or is not counted as its own
socket 41 198
io_uring_setup 425 425
shmget 29 194
shmat 30 196
msgget 68 186
semget 64 190
mq_open 240 180
memfd_create 319 279
memfd_secret 447 447
# files
creat 85 -
openat2 437 437
open_by_handle_at 304 265
truncate 76 45
ftruncate 77 46
fallocate 285 47
unlink 87 -
unlinkat 263 35
rename 82 -
renameat 264 38
renameat2 316 276
mkdir 83 -
mkdirat 258 34
rmdir 84 -
link 86 -
linkat 265 37
symlink 88 -
symlinkat 266 36
mknod 133 -
mknodat 259 33
chmod 90 -
fchmod 91 52
fchmodat 268 53
chown 92 -
lchown 94 -
fchown 93 55
fchownat 260 54
utime 132 -
utimes 235 -
futimesat 261 -
utimensat 280 88
setxattr 188 5
lsetxattr 189 6
fsetxattr 190 7
removexattr 197 14
lremovexattr 198 15
fremovexattr 199 16
# the kernel
mount 165 40
umount2 166 39
pivot_root 155 41
chroot 161 51
open_tree 428 428
move_mount 429 429
fsopen 430 430
fsmount 432 432
mount_setattr 442 442
bpf 321 280
perf_event_open 298 241
userfaultfd 323 282
keyctl 250 219
add_key 248 217
request_key 249 218
init_module 175 105
finit_module 313 273
kexec_load 246 104
reboot 169 142
"""
# Machine -> calls that open a file: number, and index of the flags argument. They are allowed for reading only.
OPENING = {"x86_64": {"open": (2, 1), "openat": (257, 2)}, "aarch64": {"openat": (56, 2)}}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Calls from this number on are newer than this list. The second set of numbers of x86_64 (x32) is above it, too.
FIRST_UNKNOWN = 452

# Machine -> its constant in the kernel.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def read_table(table: str) -> dict[str, dict[str, int]]:
    """Return the denied system calls and their numbers for each machine."""
    refused: dict[str, dict[str, int]] = {machine: {} for machine in MACHINES}
    for line in table.strip().splitlines():
        if line.startswith("#"):
            continue
        name, *numbers = line.split()
        for machine, number in zip(MACHINES, numbers, strict=True):
            if number != "-":
                refused[machine][name] = int(number)
    return refused


REFUSED = read_table(TABLE)

# Instructions of a seccomp filter.
LOAD = 0x20
JUMP_IF_EQUAL = 0x15
JUMP_IF_AT_LEAST = 0x35
JUMP_IF_ANY_BIT = 0x45
RETURN = 0x06
# Return values of the filter.
ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | 1  # 1 is EPERM, which raises an exception in Python
KILL = 0x80000000
# Offsets in the kernel's `seccomp_data`, in bytes.
NUMBER_AT = 0
MACHINE_AT = 4
ARGUMENTS_AT = 16

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
NOBODY = 65534


def filter_program(machine: str) -> bytes:
    """
    Return the filter in the kernel's format: instructions of 8 bytes (code, jump if true, jump if false, operand).

    Raises:
        `OSError`: If the system calls of this machine are unknown.
    """
    if machine not in MACHINES:
        raise OSError(f"system calls of {machine!r} are unknown. Supported: {', '.join(MACHINES)}")
    steps = [
        (LOAD, 0, 0, MACHINE_AT),
        (JUMP_IF_EQUAL, 1, 0, MACHINES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_IF_AT_LEAST, 0, 1, FIRST_UNKNOWN),
        (RETURN, 0, 0, REFUSE),
    ]
    for number in REFUSED[machine].values():
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    for number, argument in OPENING[machine].values():
        steps += [
            (JUMP_IF_EQUAL, 0, 4, number),
            (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
            (JUMP_IF_ANY_BIT, 0, 1, WRITING),
            (RETURN, 0, 0, REFUSE),
            (RETURN, 0, 0, ALLOW),
        ]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


class FilterProgram(ctypes.Structure):
    """The kernel's `sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def prctl(operation: int, first: int, second: int = 0) -> None:
    """Call the C library's `prctl`; raise `OSError` if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(operation, *(ctypes.c_ulong(value) for value in (first, second, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl({operation}) failed: {os.strerror(ctypes.get_errno())}")


def refuse_system_calls() -> None:
    """
    Deny the system calls of `REFUSED` from now on.

    Raises:
        `OSError`: If the machine is unknown or the kernel has no seccomp.
    """
    instructions = filter_program(os.uname().machine if sys.maxsize > 2**32 else "32-bit")
    program = FilterProgram(len(instructions) // 8, instructions)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(program))


def hide_memory() -> None:
    """Prevent other processes of the same user, including children, from reading this process's memory."""
    prctl(PR_SET_DUMPABLE, 0)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, 9)


def become_nobody() -> None:
    """Give up root permanently: the kernel does not apply the limit on processes to root."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def limit(memory_mib: int, cpu_seconds: int | None = None) -> None:
    """
    Limit the address space (MiB) and the CPU time (s), and forbid writing files and core dumps. At the time limit the
    kernel kills the process; at the memory limit Python raises `MemoryError`.
    """
    limits = {
        resource.RLIMIT_AS: memory_mib * 2**20,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if cpu_seconds is not None:
        limits[resource.RLIMIT_CPU] = cpu_seconds
    for key, value in limits.items():
        _, most = resource.getrlimit(key)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(key, (value, value))


def no_more_processes() -> None:
    """Allow no further processes or threads, through the limit on their number, which does not apply to root."""
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
