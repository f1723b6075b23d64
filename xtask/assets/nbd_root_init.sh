#!/usr/bin/bash
# PID 1 of a guest whose root is a volume. The load writes to it, and programs are read from it again and again.
export PATH=/usr/bin
while read -r _ _ device _ at _; do
    [ "$at" != / ] || root=$device
done < /proc/self/mountinfo
echo "ROOT $root"
read -r phase < /run/phase
cd / || exit 1

# Reads some files of the root with programs of the root, none of which is in memory.
programs() {
    echo 3 > /proc/sys/vm/drop_caches
    if shuf -n 12 /sums | sha256sum --check --quiet; then echo "RAN"; else echo "WRONG a program, or its sum"; fi
}

if [ "$phase" = check ]; then
    for _ in 1 2 3; do programs; done
    # With the device, mount(8) adds none of the present options, of which the kernel deprecates some.
    mount -o remount,ro /dev/nbd0 / || echo "WRONG / cannot be made read-only"
    echo 0 >&4
    echo o > /proc/sysrq-trigger
    sleep infinity
fi
for worker in files:f0 files:f1 files:f2 blocks:b0 direct:b1 append:b2; do
    python3 /load "${worker%:*}" "${worker#*:}" < /dev/null &
done
while :; do programs; done
