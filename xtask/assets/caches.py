"""XFS on caches of block devices of this machine, exported by the kernel's NFS server: what survives a crash, a power
cut, and the death of a cache device. Needs root. All files are written and read by the kernel's client, on a mount of
its own.

    caches.py PHASE FOREBAY PORT EARLY MODULE...

The phases are make, load1, load2 and so on, fail and missing, each after a boot of its own. The power is cut at the end
of a load. The phase fail has the number of the last cut. PORT is that of the disks on the host, and EARLY the chance in
percent that one of them writes a block before it is told to. A line `= STACK | COLUMN | RESULT` is a cell of the table.
"""

import os
import re
import sys
import time

from caches_load import Control, Load
from caches_rig import PATIENCE, STACKS, Stack, attempt, drop_caches, run, serve_kernel, until, written

PHASE, MODULES = sys.argv[1], sys.argv[5:]


def of(result):
    return f"{result[0]} of {result[1]}" if isinstance(result, list) else result


def end(how, has_power=lambda: False):
    """Ends the machine at once. What its file systems have in memory is lost. When the host reads `# cut`, it soon cuts
    the power of the disks: `has_power` tells."""
    print(f"# {how}", flush=True)
    time.sleep(2)
    until(lambda: not has_power())
    written("/proc/sysrq-trigger", "b")
    time.sleep(PATIENCE)


def make(stacks):
    for stack in stacks:
        device = stack.assemble(True)
        run("mkfs.xfs", "-q", "-f", device)
        stack.mounted(device)
        stack.write("hot", 60)
        # Caches that count uses see some.
        for _ in range(5):
            drop_caches()
            stack.right("hot")
        stack.write("late", 20)
    end("crash")


def comes_back(stack, column):
    """Assembles and mounts a stack after `column`. Returns false, and says why, if that fails."""
    problem = attempt(lambda: stack.mounted(stack.assemble(False)))
    # A process of its own has assembled the device, so this one has to learn the names of the caches.
    stack.caches = [f"/dev/mapper/{stack.short}-ssd0"]
    if problem:
        stack.cell(f"durable files after {column}", problem)
        return False
    drop_caches()
    from_disk = stack.right_of_disk("hot")
    stack.cell(f"durable files after {column}", of(list(stack.right())))
    stack.cell(f"read from the disk after {column}", from_disk)
    return True


def comes_back_from_cut(stack, number):
    """Checks a stack after a power cut."""
    is_back = comes_back(stack, f"power cut {number}")
    if is_back:
        stack.cell(f"its unflushed blocks ({number})", of(attempt(Load(stack, number).right)))
    return is_back


def load(stacks, number):
    """Checks the stacks after the crash or after the last power cut. Has the power cut while they are written to."""
    control, loads = Control(), []
    if number > 1:
        control.check()
    for stack in stacks:
        is_back = comes_back(stack, "a crash") if number == 1 else comes_back_from_cut(stack, number - 1)
        if is_back:
            loads.append(Load(stack, number))
    control.write()
    for each in loads:
        each.start()
    for each in loads:
        each.is_under_way()
    control.write_last()
    end("cut", control.has_power)


def fail(stacks, last):
    """Checks the stacks after the last power cut. Has their first cache devices fail."""
    Control().check()
    for stack in stacks:
        if not comes_back_from_cut(stack, last) or stack.name == "plain disk":
            continue
        stack.die()
        drop_caches()
        stack.cell("files with a dead cache device", of(attempt(stack.right)))
        wrote = attempt(lambda stack=stack: stack.write("after", 5))
        stack.cell("durable writes then", wrote or "go on")
    end("crash")


def without(stack):
    """Returns the block device of a stack whose first cache device is not there."""
    if stack.kind == "Forebay":
        stack.caches = [f"/dev/mapper/{stack.short}-ssd0"]
    if stack.kind == "Forebay" or stack.is_mirrored:
        return stack.assemble(False, legs=(1,))
    if stack.kind == "bcache":
        written("/sys/fs/bcache/register", stack.disk)
        written(f"/sys/block/{os.path.basename(stack.disk)}/bcache/running", "1")
        return stack.bcache()
    return stack.disk


def missing(stacks):
    for stack in stacks:
        if stack.name == "plain disk":
            continue
        problem = attempt(lambda stack=stack: stack.mounted(without(stack)))
        stack.cell("files without that device, next start", problem or of(list(stack.right())))


def main():
    # This machine has no udev, so dmsetup makes the names of its devices.
    os.environ.update(DM_DISABLE_UDEV="1", MDADM_NO_UDEV="1")
    for module in MODULES:
        run("insmod", module, *(["nbds_max=32"] if module.endswith("-nbd.ko") else []))
    serve_kernel()
    phase, number = re.fullmatch(r"([a-z]+)(\d*)", PHASE).groups()
    numbers = [int(number)] if number else []
    {"make": make, "load": load, "fail": fail, "missing": missing}[phase]([Stack(name) for name in STACKS], *numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
