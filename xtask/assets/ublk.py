"""Checks volumes as block devices of this machine (ublk). Needs root, and a kernel with ublk as a module.

    ublk.py KILLS FOREBAY MODULE...     the server is killed KILLS times below each file system
"""

import contextlib
import errno
import glob
import os
import random
import subprocess
import sys
import threading
import time

from block_rig import (BLOCK, CHECK, DISK, MAKE, MOUNT, SIZE, Disk, Rig, Writer, drop_caches, report, run, verify)
from quota_rig import MIB, PATIENCE, SSD, Wrong, expect

DEVICE = "/dev/ublkb0"
# Of <linux/sched.h>: memory is allocated without I/O, and writers are throttled by their own device only.
MEMALLOC_NOIO, LOCAL_THROTTLE = 0x80000, 0x100000


def unload():
    # The kernel may still use the device of a server that has just ended.
    for _ in range(PATIENCE):
        if subprocess.run(["rmmod", "ublk_drv"], capture_output=True).returncode == 0:
            return
        time.sleep(1)
    raise Wrong("ublk_drv is in use")


def no_ublk(rig):
    """Without ublk, a volume has no device, and the reason is told."""
    rig.ask("create", "scratch", "--backing", DISK)
    rig.refused("modprobe ublk_drv", "attach", "scratch")
    rig.load()
    rig.server.crash()


def loop_device(name, *options):
    path = f"/dev/shm/{name}.img"
    with open(path, "wb") as file:
        file.write(bytes([7]) * (32 * MIB))
    return run("losetup", "--find", "--show", *options, path).strip(), path


def written(path, text):
    with open(path, "w") as file:
        file.write(text)


def refusals(rig, modules):
    """A device that another use needs is refused with the reason, and is not written."""
    for module in modules:
        run("insmod", module)

    def refused(device, text):
        rig.refused(text, "create", "used", "--backing", device)

    member, image = loop_device("member")
    number = os.stat(member).st_rdev
    written("/sys/module/md_mod/parameters/new_array", "md_pair")
    array = "/sys/block/md_pair/md"
    written(f"{array}/new_dev", f"{os.major(number)}:{os.minor(number)}")
    refused(member, "is a part of /dev/md_pair")
    written(f"{array}/dev-{os.path.basename(member)}/state", "remove")
    written(f"{array}/array_state", "clear")
    run("dmsetup", "create", "held", "--noudevsync", "--table", f"0 {32 * MIB // 512} linear {member} 0")
    refused(member, "is a part of /dev/dm-")
    run("dmsetup", "remove", "held", "--noudevsync")
    with open(image, "rb") as file:
        expect(file.read() == bytes([7]) * (32 * MIB), "a refused device was written")
    own = os.open(member, os.O_RDONLY | os.O_EXCL)
    refused(member, "is in use")
    os.close(own)
    run("mkswap", member)
    run("swapon", member)
    refused(member, "is swap space")
    run("swapoff", member)
    # The kernel keeps no other program from a file that it swaps to.
    swap = f"{SSD}/swap"
    with open(swap, "wb") as file:
        file.write(bytes(8 * MIB))
    run("mkswap", swap)
    run("swapon", swap)
    refused(swap, "is swap space")
    run("swapoff", swap)
    os.unlink(swap)
    disk, _ = loop_device("disk", "--partscan")
    run("addpart", disk, "1", "2048", "40960")
    run("mkfs.ext4", "-q", "-F", f"{disk}p1")
    run("mount", f"{disk}p1", MOUNT)
    refused(f"{disk}p1", "is mounted at")
    refused(disk, "is mounted at")
    run("umount", MOUNT)
    # Without those uses the device is accepted.
    rig.ask("create", "used", "--backing", member)
    rig.ask("remove", "used")
    for device in (member, disk):
        run("losetup", "-d", device)
    for name in ("member", "disk"):
        os.unlink(f"/dev/shm/{name}.img")


def attaching(rig):
    """A volume is a disk with a volatile cache."""
    expect(rig.ask("attach", "scratch") == DEVICE, "another device")
    expect(rig.ask("attach", "scratch") == DEVICE, "a second attach makes another device")
    expect(DEVICE in rig.ask("list") and DEVICE in rig.ask("show", "scratch"), "the device is not shown")
    wanted = {
        "queue/write_cache": "write back",
        "queue/fua": "1",
        "queue/logical_block_size": "512",
        "queue/physical_block_size": "4096",
        "queue/discard_max_bytes": str(1 << 30),
        "queue/write_zeroes_max_bytes": str(1 << 30),
        "size": str(SIZE // 512),
        "ro": "0",
    }
    for name, value in wanted.items():
        with open(f"/sys/block/ublkb0/{name}") as file:
            found = file.read().strip()
        expect(found == value, f"{name} is {found}, not {value}")
    rig.refused("detach it first", "remove", "scratch")


def flushing(rig):
    """No thread of the server waits for a block device when it needs memory, because it may serve that device."""
    for path in glob.glob(f"/proc/{rig.server.process.pid}/task/*/stat"):
        with open(path) as file:
            name, fields = file.read().rsplit(")", 1)
        flags = int(fields.split()[6])
        expect(flags & MEMALLOC_NOIO and flags & LOCAL_THROTTLE, f"{name} has the flags {flags:x}")


def unrecorded(rig):
    """An attach and a detach that cannot be recorded change nothing."""
    obstacle = f"{SSD}/state/volumes.new"
    os.mkdir(obstacle)
    rig.refused("cannot be written", "detach", "scratch")
    expect(os.path.exists(DEVICE) and DEVICE in rig.ask("show", "scratch"), "the device is gone")
    os.rmdir(obstacle)
    rig.ask("detach", "scratch")
    os.mkdir(obstacle)
    rig.refused("cannot be written", "attach", "scratch")
    expect(not glob.glob("/dev/ublk[bc]*") and DEVICE not in rig.ask("show", "scratch"), "there is a device")
    os.rmdir(obstacle)
    rig.server.crash()
    expect(not glob.glob("/dev/ublk[bc]*") and DEVICE not in rig.ask("show", "scratch"), "a start makes a device")
    expect(rig.ask("attach", "scratch") == DEVICE, "another device")


def sectors(rig):
    """A volume on a disk with sectors of 4,096 bytes has such sectors, and XFS on them survives kills."""
    with open(f"{SSD}/large.img", "wb") as file:
        file.truncate(SIZE)
    disk = run("losetup", "--find", "--show", "--sector-size", str(BLOCK), f"{SSD}/large.img").strip()
    rig.ask("create", "large", "--backing", disk)
    device = rig.ask("attach", "large")
    with open(f"/sys/block/{os.path.basename(device)}/queue/logical_block_size") as file:
        expect(file.read().strip() == str(BLOCK), "the sectors have another size")
    run("mkfs.xfs", "-q", "-f", "-s", f"size={BLOCK}", device)
    run("mount", device, MOUNT)
    writer = Writer(1)
    for _ in range(2):
        time.sleep(0.5)
        rig.server.crash()
    before, end = writer.done, time.monotonic() + PATIENCE
    while writer.done < before + 3 and time.monotonic() < end:
        time.sleep(0.1)
    writer.end()
    expect(writer.done >= before + 3, "writes do not go on after the last start")
    drop_caches()
    verify(writer.files)
    run("umount", MOUNT)
    run(*CHECK["xfs"], device)
    rig.ask("detach", "large")
    rig.ask("remove", "large")
    run("mount", disk, MOUNT)
    verify(writer.files)
    run("umount", MOUNT)
    run("losetup", "-d", disk)
    os.unlink(f"{SSD}/large.img")


def answered(rig, mode, turns):
    """A write that was answered, and never flushed, survives kills of the server."""
    rig.ask("mode", "scratch", mode)
    disk, known, chance = Disk(DEVICE), {}, random.Random(mode)
    for turn in range(turns):
        for _ in range(200):
            block, number = chance.randrange(2000), chance.getrandbits(60)
            disk.write(block, number)
            known[block] = number
        rig.server.crash()
        for block, number in known.items():
            expect(disk.read(block) == number, f"block {block} has not what was answered, after kill {turn}")
    disk.close()
    rig.ask("mode", "scratch", "server")


def zeroes(rig):
    """Zeros and discards of all sizes read as zeros, and leave their neighbours."""
    disk = Disk(DEVICE)
    for command, blocks in (("--zeroout", 3), ("--zeroout", 2000), ("--discard", 300)):
        for block in (0, 1, blocks, blocks + 1):
            disk.write(block, 9)
        name = ["blkdiscard", "-f", "-o", str(BLOCK), "-l", str(blocks * BLOCK), DEVICE]
        run(*name, *(["--zeroout"] if command == "--zeroout" else []))
        found = [disk.read(block) for block in (0, 1, blocks, blocks + 1)]
        expect(found == [9, 0, 0, 9], f"after {command} of {blocks} blocks the blocks have {found}")
    disk.close()


def killed(rig, fs, kills):
    """Durable files of a mounted file system survive kills of the server under load."""
    run(*MAKE[fs], DEVICE)
    run("mount", DEVICE, MOUNT)
    writers = [Writer(number) for number in range(3)]
    for _ in range(kills):
        time.sleep(0.5)
        rig.server.crash()
    time.sleep(0.5)
    rig.stop()
    rig.server.start()
    before = sum(writer.done for writer in writers)
    # Writes go on after the last start.
    end = time.monotonic() + PATIENCE
    while sum(writer.done for writer in writers) < before + 6 and time.monotonic() < end:
        time.sleep(0.1)
    for writer in writers:
        writer.end()
    print(f"# {fs}: {sum(writer.done for writer in writers)} files were written", flush=True)
    expect(sum(writer.done for writer in writers) >= before + 6, "writes do not go on after the last start")
    rig.refused("unmount it", "detach", "scratch")
    files = {name: digest for writer in writers for name, digest in writer.files.items()}
    drop_caches()
    verify(files)
    run("fstrim", MOUNT)
    run("umount", MOUNT)
    run(*CHECK[fs], DEVICE)
    rig.server.crash()
    run("mount", DEVICE, MOUNT)
    verify(files)
    run("umount", MOUNT)
    return files


def until_done(writer, number):
    end = time.monotonic() + PATIENCE
    while writer.done < number and time.monotonic() < end:
        time.sleep(0.05)
    expect(writer.done >= number, f"{writer.done} files were written, not {number}")


def cache_file_deleted(rig):
    """Durable files of a mounted file system survive a kill and the loss of a cache file: the example of README.md."""
    cache = f"{SSD}/a"
    run(*MAKE["ext4"], DEVICE)
    run("mount", DEVICE, MOUNT)
    writer = Writer(3)
    until_done(writer, 5)
    rig.kill()
    os.unlink(cache)
    rig.server.start()
    until_done(writer, writer.done + 5)
    writer.end()
    drop_caches()
    verify(writer.files)
    run("umount", MOUNT)
    run(*CHECK["ext4"], DEVICE)
    status, said = rig.server.ask("pool", "add", cache)
    expect(status == 0, f"the cache has one file only: {said}")


def detaching(rig, files):
    """After a detach, the backing file has everything, and there is no device."""
    rig.ask("detach", "scratch")
    expect(not os.path.exists(DEVICE) and not glob.glob("/dev/ublkc*"), "the device is still there")
    expect(DEVICE not in rig.ask("show", "scratch"), "the device is still shown")
    copy = "/dev/shm/copy"
    run("cp", "--sparse=always", DISK, copy)
    run("mount", "-o", "loop,nouuid", copy, MOUNT)
    verify(files)
    run("umount", MOUNT)
    os.unlink(copy)


def held(rig):
    """A program that has the device open gets errors after a detach, and holds up no command."""
    rig.ask("attach", "scratch")
    user = os.open(DEVICE, os.O_RDONLY)
    rig.ask("detach", "scratch")
    try:
        # The device has no bytes any more.
        expect(os.pread(user, BLOCK, 0) == b"", "a device that is gone was read")
    except OSError as error:
        expect(error.errno == errno.EIO, f"the read ends with {error}")
    expect(rig.ask("attach", "scratch") != DEVICE, "the kernel has forgotten a device in use")
    rig.ask("detach", "scratch")
    os.close(user)
    # The kernel forgets the device a moment later.
    for _ in range(PATIENCE):
        device = rig.ask("attach", "scratch")
        rig.ask("detach", "scratch")
        if device == DEVICE:
            return
        time.sleep(1)
    raise Wrong("the kernel never forgets the device")


def mapped(name):
    for path in glob.glob("/sys/block/dm-*/dm/name"):
        with open(path) as file:
            if file.read().strip() == name:
                return f"/dev/{path.split('/')[3]}"
    raise Wrong(f"device mapper has no {name}")


def silent(rig):
    """A detach from a backing device that hangs fails after a while, and holds up no command for another volume."""
    below, image = loop_device("slow")
    run("dmsetup", "create", "slow", "--noudevsync", "--table", f"0 {32 * MIB // 512} linear {below} 0")
    rig.ask("create", "slow", "--backing", mapped("slow"), "--mode", "write-through")
    disk = Disk(rig.ask("attach", "slow"))
    disk.write(0, 5)
    disk.close()
    run("dmsetup", "suspend", "--noflush", "--nolockfs", "slow")
    ended = []
    detach = threading.Thread(target=lambda: ended.append(rig.answer("detach", "slow")), daemon=True)
    detach.start()
    time.sleep(1)
    rig.ask("attach", "scratch")
    rig.ask("detach", "scratch")
    detach.join(PATIENCE)
    expect(ended and ended[0][0] == 1 and "does not answer" in ended[0][1], f"the detach ended with {ended}")
    run("dmsetup", "resume", "slow")
    # The device is claimed until the flush ends.
    end = time.monotonic() + PATIENCE
    while rig.answer("detach", "slow")[0] != 0 and time.monotonic() < end:
        time.sleep(0.1)
    rig.ask("remove", "slow")
    run("dmsetup", "remove", "slow", "--noudevsync")
    run("losetup", "-d", below)
    os.unlink(image)


def unremoved(rig):
    """An attach after a detach that failed says why the device is not served."""
    rig.ask("attach", "scratch")
    run("pkill", "-KILL", "-P", str(rig.server.process.pid), "-f", "control-ublk")
    rig.refused("restart the server", "detach", "scratch")
    rig.refused("restart the server", "attach", "scratch")
    rig.stop()
    rig.server.start()
    disk = Disk(DEVICE)
    disk.write(7, 78)
    expect(disk.read(7) == 78, "the block has other contents")
    disk.close()
    rig.ask("detach", "scratch")


def gone(rig):
    """A device that is gone, as after a restart of this machine, is made again."""
    rig.ask("attach", "scratch")
    disk = Disk(DEVICE)
    disk.write(7, 77)
    disk.close()
    rig.kill()
    unload()
    expect(not os.path.exists(DEVICE), "the device is still there")
    rig.load()
    rig.server.start()
    end = time.monotonic() + PATIENCE
    while not os.path.exists(DEVICE) and time.monotonic() < end:
        time.sleep(0.05)
    disk = Disk(DEVICE)
    expect(disk.read(7) == 77, "the block has other contents")
    disk.close()
    rig.ask("detach", "scratch")
    rig.ask("remove", "scratch")


def main():
    kills, binary, *modules = sys.argv[1:]
    rig = Rig(binary, [module for module in modules if "ublk" in module])
    # The names of the files begin with the place in the order of loading.
    stacked = [module for module in modules if module.endswith(("-dm-mod.ko", "-md-mod.ko"))]
    files = {}
    cases = [
        ("without ublk", lambda: no_ublk(rig)),
        ("devices in use", lambda: refusals(rig, stacked)),
        ("attach", lambda: attaching(rig)),
        ("memory", lambda: flushing(rig)),
        ("a record that cannot be written", lambda: unrecorded(rig)),
        ("sectors of 4096 bytes", lambda: sectors(rig)),
        ("answered writes, write-back", lambda: answered(rig, "server", 2)),
        ("answered writes, write-through", lambda: answered(rig, "write-through", 1)),
        ("zeros and discards", lambda: zeroes(rig)),
        ("a deleted cache file", lambda: cache_file_deleted(rig)),
        ("ext4", lambda: killed(rig, "ext4", int(kills))),
        ("xfs", lambda: files.update(killed(rig, "xfs", int(kills)))),
        ("detach", lambda: detaching(rig, files)),
        ("a detach from a program", lambda: held(rig)),
        ("a backing device that hangs", lambda: silent(rig)),
        ("a detach that fails", lambda: unremoved(rig)),
        ("a device that is gone", lambda: gone(rig)),
    ]
    status = report(cases, rig.server.log)
    with contextlib.suppress(Exception):
        rig.kill()
    return status


if __name__ == "__main__":
    sys.exit(main())
