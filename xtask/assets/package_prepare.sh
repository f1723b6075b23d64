# Runs after guest_units.sh, before systemd: the judge installs the packages later.
# Variables: OLD, NEW, JUDGE, MANUAL (paths), MODULES (those of a SCSI disk in memory)

# The array is a spinning disk with an identity, so that `doctor --apply` has something to mend and to keep.
for module in $MODULES; do
    case $module in
    *scsi_debug*) insmod "$module" dev_size_mb=256 delay=0 ;;
    *) insmod "$module" ;;
    esac
done
until [ -b /dev/sda ]; do sleep 0.1; done
mkfs.ext4 -q -L array /dev/sda
# The names of the manual.
mkdir -p /srv/data
echo 'LABEL=array /srv/data ext4 nofail 0 0' > /etc/fstab
cat > /etc/udev/rules.d/62-manual.rules << END
KERNEL=="ubda", SYMLINK+="nvme0n1p4"
KERNEL=="ubdb", SYMLINK+="nvme1n1p4"
END
# A time service that is installed and does not run, and none that runs.
rm -f /etc/systemd/system/sysinit.target.wants/systemd-timesyncd.service
cat > /etc/systemd/system/chrony.service << END
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
END
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
END
