"""Tries calls that the sandbox of the shipped unit forbids. `confined.py FILE` writes a line for each call to FILE:
its name, and the name of its error or `done`. boot_judge.py runs this program with the unit's sandbox and without it."""

import ctypes
import errno
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
# Constants of the kernel that Python lacks.
CLONE_NEWUTS, PER_LINUX32, ANONYMOUS, ALL_PROTECTIONS = 0x04000000, 8, 0x22, 7

# The error of each call in the sandbox, and the setting of the unit that forbids it.
EXPECTED = {
    "umount": ("EPERM", "SystemCallFilter=@system-service"),
    "setpriority": ("EPERM", "SystemCallFilter=~@resources"),
    "personality": ("EPERM", "LockPersonality"),
    "unshare": ("EPERM", "RestrictNamespaces"),
    "netlink": ("EAFNOSUPPORT", "RestrictAddressFamilies"),
    "writable-code": ("EPERM", "MemoryDenyWriteExecute"),
    "clock_settime": ("EPERM", "ProtectClock"),
    "write-usr": ("EROFS", "ProtectSystem"),
    "write-sysctl": ("EROFS", "ProtectKernelTunables"),
    "write-cgroup": ("EROFS", "ProtectControlGroups"),
    "open-terminal": ("EPERM", "DevicePolicy"),
    "open-disk": ("done", "DeviceAllow"),
    "write-run": ("done", "ProtectSystem"),
}


def call(result):
    """Raises the error of a call of libc."""
    if result in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "failed")


def opened(path, flags):
    os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY, 0o600))


CALLS = {
    "umount": lambda: call(libc.umount2(b"/none", 0)),
    "setpriority": lambda: call(libc.setpriority(0, 0, 5)),
    "personality": lambda: call(libc.personality(PER_LINUX32)),
    "unshare": lambda: call(libc.unshare(CLONE_NEWUTS)),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
    "writable-code": lambda: call(libc.mmap(None, 4096, ALL_PROTECTIONS, ANONYMOUS, -1, 0)),
    "clock_settime": lambda: call(libc.syscall(227, 0, None)),
    "write-usr": lambda: opened("/usr/confined", os.O_WRONLY | os.O_CREAT),
    "write-sysctl": lambda: opened("/proc/sys/kernel/hostname", os.O_WRONLY),
    "write-cgroup": lambda: (os.mkdir("/sys/fs/cgroup/confined"), os.rmdir("/sys/fs/cgroup/confined")),
    "open-terminal": lambda: opened("/dev/ttyS0", os.O_RDWR | os.O_NONBLOCK),
    "open-disk": lambda: opened("/dev/disk/by-id/virtio-ssd1", os.O_RDWR),
    "write-run": lambda: opened("/run/confined-too", os.O_WRONLY | os.O_CREAT),
}


def error_of(attempt):
    """Returns the name of the error of a call, or `done`."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "done"


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        for name, attempt in CALLS.items():
            file.write("%s %s\n" % (name, error_of(attempt)))
