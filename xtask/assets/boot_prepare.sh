# Runs after guest_units.sh, before systemd: installs the shipped unit and its configuration, and delays disks.
# Variables: BINARY, UNITS, JUDGE (paths), DROP_IN, LEDGER (text), LATE ("serial=seconds ..."),
# ARRAY_WAIT and STATE_WAIT (time that their mounts wait for the disks)

# Not a link: the unit has a /tmp of its own, and the build may be in the one of the host.
cp "$BINARY" /usr/bin/forebay
mkdir -p /etc/forebay /etc/systemd/system/forebay.service.d /srv/array /var/lib/forebay
cp "$UNITS"/forebay.service "$UNITS"/forebay-privileged* /etc/systemd/system/
printf '%s\n' "$DROP_IN" > /etc/systemd/system/forebay.service.d/rig.conf
printf '%s\n' "$LEDGER" > /run/ledger
cat > /etc/forebay/forebay.toml << END
listen = ["127.0.0.1"]
cache = ["/dev/disk/by-id/virtio-ssd1", "/dev/disk/by-id/virtio-ssd2"]
ram = "64MiB"
[[export]]
path = "/srv/array"
name = "/"
[[export.client]]
networks = ["127.0.0.0/8"]
access = "rw"
squash = "none"
END
cat > /etc/fstab << END
/dev/disk/by-id/virtio-array /srv/array ext4 nofail,x-systemd.device-timeout=$ARRAY_WAIT 0 0
/dev/disk/by-id/virtio-state /var/lib/forebay ext4 nofail,x-systemd.device-timeout=$STATE_WAIT 0 0
END

cat > /etc/systemd/system/boot.target << END
[Unit]
Requires=basic.target
Wants=forebay.service judge.service late.service
AllowIsolate=yes
END
cat > /etc/systemd/system/judge.service << END
[Unit]
DefaultDependencies=no
After=systemd-udevd.service systemd-journald.socket
[Service]
ExecStart=/usr/bin/python3 -u $JUDGE
StandardError=tty
END
cat > /etc/systemd/system/late.service << END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh /run/late
END

# A late disk is unbound from its driver now, and bound again after its delay. A disk of user-mode Linux cannot be unbound:
# udev gives it the name that systemd and the server know after the delay.
: > /run/late
for late in $LATE; do
    serial=${late%=*} delay=${late#*=}
    for disk in /sys/block/vd*; do
        [ "$(cat "$disk/serial" 2> /dev/null)" = "$serial" ] || continue
        device=$(basename "$(readlink "$disk/device")")
        echo "$device" > /sys/bus/virtio/drivers/virtio_blk/unbind
        echo "(sleep $delay; echo $device > /sys/bus/virtio/drivers/virtio_blk/bind) &" >> /run/late
    done
    if [ -d /sys/block/ubda ]; then
        : > "/run/late-$serial"
        echo "(sleep $delay; rm /run/late-$serial; udevadm trigger --action=add --sysname-match='ubd*') &" >> /run/late
    fi
done
echo wait >> /run/late
