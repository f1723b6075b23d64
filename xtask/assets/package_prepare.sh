# Runs after guest_units.sh, before systemd: the judge installs the packages later.
# Variables: OLD, NEW, JUDGE, MANUAL (paths)

mkdir -p /srv/array
echo '/dev/disk/by-id/virtio-array /srv/array ext4 nofail 0 0' > /etc/fstab
# A container forbids the restart of services by this file.
rm -f /usr/sbin/policy-rc.d
# The manual's index would take a minute to rebuild here.
rm -f /var/lib/man-db/auto-update
cat > /etc/systemd/system/boot.target << END
[Unit]
Requires=basic.target
Wants=judge.service
AllowIsolate=yes
END
cat > /etc/systemd/system/judge.service << END
[Unit]
After=basic.target local-fs.target
[Service]
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive HOME=/root
ExecStart=/usr/bin/python3 -u $JUDGE $OLD $NEW $MANUAL
StandardError=tty
TTYPath=/dev/ttyS0
END
