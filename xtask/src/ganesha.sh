# nfs-ganesha requires a portmapper. A private one runs in a network without links, and nfs-ganesha finds it by its
# socket in a private /run. nfs-ganesha itself uses the host's loopback. $1 is the working directory.
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/rpcbind /run/ganesha /var/lib/nfs/ganesha
unshare --net sh -c 'ip link set lo up; exec rpcbind -w -f' &
while [ ! -S /run/rpcbind.sock ]; do sleep 0.05; done
exec ganesha.nfsd -F -f "$1/ganesha.conf" -L "$1/log" -p /run/ganesha.pid
