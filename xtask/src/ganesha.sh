# nfs-ganesha requires a portmapper, and finds it by its socket in a private /run. $1 is the working directory. If $2 is
# "loopback", nfs-ganesha uses the host's loopback, and the portmapper runs in a network without links. If it is
# "network", the clients of that network ask the portmapper for the ports of locks.
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/rpcbind /run/ganesha /var/lib/nfs/ganesha
if [ "$2" = network ]; then
    rpcbind -w -f &
else
    unshare --net sh -c 'ip link set lo up; exec rpcbind -w -f' &
fi
while [ ! -S /run/rpcbind.sock ]; do sleep 0.05; done
if [ "$2" = network ]; then
    mkdir -p "$1/statd/sm" "$1/statd/sm.bak"
    chown -R statd "$1/statd"
    rpc.statd --no-notify --state-directory-path "$1/statd"
fi
exec ganesha.nfsd -F -f "$1/ganesha.conf" -L "$1/log" -p /run/ganesha.pid
