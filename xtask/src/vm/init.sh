#!/bin/busybox sh
# PID 1 of the guest: loads the modules, makes the host's root the guest's, and runs /job in it.
/bin/busybox mkdir -p /bin /dev /proc /sys /lower /upper /root /etc
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
exec > /dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in /modules/*.ko; do insmod "$module" || echo "cannot load $module"; done

# Opens 3 for the job's output and 4 for its exit status, unless systemd follows, and mounts the host's root at /lower.
# $work is the directory on the host for user-mode Linux only, where it comes from the kernel's command line.
if [ -n "$work" ]; then
    stty -F /dev/ttyS0 raw -echo
    output=/dev/ttyS0
    if ! [ -e /systemd ]; then
        # Programs would colour the output for a terminal.
        mkfifo /output
        cat /output > /dev/ttyS0 &
        copier=$!
        mkdir /work
        mount -t hostfs -o "$work" none /work
        exec 3> /output 4> /work/status
    fi
    mount -t hostfs -o ro,/ none /lower
else
    # The ports appear a moment after their driver is loaded.
    port() {
        until grep -lx "$1" /sys/class/virtio-ports/*/name 2> /dev/null; do :; done | cut -d / -f 5
    }
    output=/dev/virtio-ports/output
    [ -e /systemd ] || exec 3> "/dev/$(port output)" 4> "/dev/$(port status)"
    # The host does not change files that the guest reads from this mount, so the guest may cache without limit.
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /lower
fi

finish() {
    exec 3>&-
    if [ -n "$work" ]; then
        # A daemon of the job may have the output open.
        for process in /root/proc/[0-9]*; do
            case ${process##*/} in 1 | "$copier") ;; *) kill -9 "${process##*/}" ;; esac
        done 2> /dev/null
        # This waits until the terminal has all of the output.
        wait
        stty -F /dev/ttyS0 -echo
    fi
    echo "$1" >&4
    poweroff -f
}

[ -e /lower/bin ] &&
    mount -t tmpfs -o size=80% tmpfs /upper && mkdir /upper/data /upper/work &&
    mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /root ||
    finish "no root"
mount --move /proc /root/proc
mount --move /sys /root/sys
mount --move /dev /root/dev
mount -t tmpfs tmpfs /root/run
mkdir -p /root/dev/shm /root/dev/pts /root/run/lock
mount -t tmpfs tmpfs /root/dev/shm
mount -t devpts devpts /root/dev/pts
ln -s /proc/self/fd /root/dev/fd
ln -s fd/0 /root/dev/stdin
ln -s fd/1 /root/dev/stdout
ln -s fd/2 /root/dev/stderr

ip link set lo up
nic=$(ls /root/sys/class/net | grep -m 1 '^[ev]')
ip addr add 10.0.2.15/24 dev "$nic"
ip link set "$nic" up
ip route add default via 10.0.2.2
hostname guest

cp /job /root/run/job
echo "The guest is up."
if [ -e /systemd ]; then
    ln -s "$output" /root/run/output
    chroot /root /bin/sh /run/job || { echo "The preparations failed."; poweroff -f; }
    exec switch_root /root /lib/systemd/systemd --unit=boot.target
fi
chroot /root /bin/sh /run/job < /root/dev/null >&3 2>&3 3>&- 4>&-
status=$?
# The job may have mounted a file system that becomes the root. Its init writes the status to 4.
[ ! -e /root/run/root ] || exec switch_root "/root$(cat /root/run/root)" /usr/sbin/init < /root/dev/null >&3 2>&3
finish $status
