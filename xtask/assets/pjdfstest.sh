# Runs pjdfstest ($1) with its configuration ($2) on the mounted export.
# The second of its two users exists only in the guest.
set -e
echo tests:x:1001: >> /etc/group
echo tests:x:1001:1001::/:/bin/false >> /etc/passwd
mkdir -m 777 /mnt/pjdfstest
"$1" -c "$2" -p /mnt/pjdfstest -s /dev/shm
