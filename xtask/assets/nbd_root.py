"""Makes a volume the root of a guest: attaches it over NBD and TCP, mounts it, and stays to connect it again.

    nbd_root.py PHASE HOST PORT FS MODULE...

The script runs in the root of the host, as a storage daemon of an initramfs does. Its lines have these first words:

    KERNEL    a line of the kernel's log that is a warning or worse
    LINKED    the kernel has new connections
    FOUND     a file or a block of the load, with its sum or number (phase "check")
"""

import hashlib
import os
import sys
import threading
import time

from block_rig import CHECK, run
from nbd_netlink import LINK_DEAD, Device, Netlink
from quota_rig import PATIENCE, expect

PHASE, HOST, PORT, FS, *MODULES = sys.argv[1:]
DEVICE, VOLUME, CUT = "/dev/nbd0", "/volume", "/share/cut"
BLOCK = 4096


def attach():
    device = Device(HOST, int(PORT), "root", 4)
    device.attach()
    end = time.monotonic() + PATIENCE
    while True:
        with open("/sys/block/nbd0/size") as file:
            if int(file.read()) > 0:
                return device
        expect(time.monotonic() < end, "the volume does not appear")
        time.sleep(0.02)


def connect_again(device, dead):
    """Gives the kernel new connections whenever it reports the end of one, as long as the guest runs."""
    while True:
        dead.wait(LINK_DEAD)
        while True:
            try:
                device.attach_again()
                break
            except OSError:
                # The server is away, or has not recovered yet.
                time.sleep(0.02)
        print("LINKED", flush=True)


def log(kernel):
    while True:
        try:
            # A line has a prefix "PRIORITY,NUMBER,TIME,-;".
            prefix, _, text = os.read(kernel, 8192).decode(errors="replace").partition(";")
        except BrokenPipeError:
            print("KERNEL lines were lost", flush=True)
            continue
        if int(prefix.split(",")[0]) & 7 <= 4:
            print(f"KERNEL {text.splitlines()[0]}", flush=True)


def cut():
    """Ends the guest as a power cut does, when the host asks for it."""
    while not os.path.exists(CUT):
        time.sleep(0.02)
    with open("/proc/sysrq-trigger", "w") as file:
        file.write("b")


def stay(device, dead):
    """Goes on in the background."""
    kernel = os.open("/dev/kmsg", os.O_RDONLY)
    os.lseek(kernel, 0, os.SEEK_END)
    if os.fork() > 0:
        return
    os.setsid()
    for work in [lambda: log(kernel), cut]:
        threading.Thread(target=work, daemon=True).start()
    connect_again(device, dead)


def found():
    """Prints every file and every block of the load."""
    for worker in sorted(os.listdir(f"{VOLUME}/data")):
        path = f"{VOLUME}/data/{worker}"
        if os.path.isdir(path):
            # A file with such a name was not durable.
            for name in [name for name in os.listdir(path) if not name.endswith(".new")]:
                with open(f"{path}/{name}", "rb") as file:
                    print(f"FOUND {worker}/{name} {hashlib.sha256(file.read()).hexdigest()[:16]}", flush=True)
            continue
        with open(path, "rb") as file:
            data = file.read()
        for place in range(0, len(data), BLOCK):
            block = data[place:place + BLOCK]
            number = int.from_bytes(block[:8], "little")
            whole = block == number.to_bytes(8, "little") * (BLOCK // 8)
            if number or not whole:
                print(f"FOUND {worker}/{place // BLOCK} {number if whole else 'torn'}", flush=True)


def mount():
    os.makedirs(VOLUME, exist_ok=True)
    run("mount", "-t", FS, "-o", "discard", DEVICE, VOLUME)


def main():
    for module in MODULES:
        if module.endswith("-nbd.ko"):
            run("insmod", module)
    dead = Netlink("nbd_mc_group")
    device = attach()
    mount()
    if PHASE == "check":
        found()
        run("umount", VOLUME)
        run(*CHECK[FS], DEVICE)
        mount()
    for name in ("dev", "proc", "sys"):
        run("mount", "--rbind", f"/{name}", f"{VOLUME}/{name}")
    run("mount", "-t", "tmpfs", "tmpfs", f"{VOLUME}/run")
    with open(f"{VOLUME}/run/phase", "w") as file:
        file.write(f"{PHASE}\n")
    with open("/run/root", "w") as file:
        file.write(VOLUME)
    stay(device, dead)


if __name__ == "__main__":
    main()
