# Runs a program in a network of its own, whose connections to 10.0.2.2 reach the loopback of this host, without privileges
# there. Arguments: the processor, the program and its arguments. The program has the interface tap1.
mkfifo network
setpriv --pdeathsig KILL unshare --net --pid --fork --kill-child sh -c '
    : > network
    until ip link show tap0 2> /dev/null > /dev/null; do sleep 0.01; done
    ip tuntap add tap1 mode tap
    ip link add bridge type bridge
    for interface in tap0 tap1 bridge; do ip link set "$interface" mtu 65520 up; done
    ip link set tap0 master bridge && ip link set tap1 master bridge || exit 1
    exec taskset --cpu-list "$@"' sh "$@" &
guest=$!
# Before this the program has the network of the host.
: < network
setpriv --pdeathsig KILL slirp4netns --mtu=65520 "$guest" tap0 > slirp4netns.log 2>&1 &
relay=$!
wait "$guest"
status=$?
kill "$relay"
exit "$status"
