# nfs-ganesha insists on a portmapper: it gets its own, out of sight in a network without links, found by its socket in
# a private /run. nfs-ganesha itself stays on the host's loopback. $1 is the working directory.
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/rpcbind /run/ganesha /var/lib/nfs/ganesha
unshare --net sh -c 'ip link set lo up; exec rpcbind -w -f' &
while [ ! -S /run/rpcbind.sock ]; do sleep 0.05; done
exec ganesha.nfsd -F -f "$1/ganesha.conf" -L "$1/log" -p /run/ganesha.pid
