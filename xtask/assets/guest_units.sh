# Runs in the guest's root before systemd.
set -e
PATH=/usr/sbin:/usr/bin:/sbin:/bin

# The root is this machine's, which may be a container. With this file systemd takes the guest for one as well, and leaves
# `/` private: a unit's own namespace then keeps mounts that were unmounted outside of it.
rm -f /.dockerenv

# These services of the host must not run in the guest.
for unit in systemd-hwdb-update ldconfig systemd-firstboot systemd-sysusers systemd-journal-catalog-update systemd-update-done \
    systemd-update-utmp systemd-machine-id-commit systemd-random-seed systemd-pstore systemd-modules-load systemd-binfmt \
    systemd-remount-fs systemd-tmpfiles-setup systemd-tmpfiles-setup-dev kmod-static-nodes systemd-journal-flush; do
    ln -sf /dev/null "/etc/systemd/system/$unit.service"
done
for unit in dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount \
    sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount timers.target rpcbind.socket; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done

# Each reload of systemd runs all generators. The guests need those of /etc/fstab, of NFS and of the server only.
mkdir -p /etc/systemd/system-generators
for generator in /lib/systemd/system-generators/*; do
    case ${generator##*/} in
    systemd-fstab-generator | nfs-* | rpc-* | forebay-*) ;;
    *) ln -sf /dev/null "/etc/systemd/system-generators/${generator##*/}" ;;
    esac
done
# User-mode Linux has 600 terminals. Each would become a unit of systemd, and take time in udev and at each reload.
mkdir -p /etc/systemd/system/systemd-udev-trigger.service.d
cat > /etc/systemd/system/systemd-udev-trigger.service.d/rig.conf << END
[Service]
ExecStart=
ExecStart=-udevadm trigger --type=subsystems --action=add
ExecStart=-udevadm trigger --type=devices --action=add --subsystem-nomatch=tty
END
