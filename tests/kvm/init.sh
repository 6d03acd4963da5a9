#!/bin/sh
# PID 1 of the lab, from the moment its disks are mounted: makes the host that box is tested on, does
# what /job/settings asks for, and switches the machine off. It decides nothing about the tests.
# Words for a person go to the console; what the other side must understand goes to $RESULTS.
set -u
RESULTS=/dev/ttyS1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 TERM=linux

finish() { # STATUS
    printf '{"end": %d}\n' "$1" >$RESULTS
    sync
    exec busybox poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /run
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts -o mode=620,gid=5 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
# Nothing else is mounted there: every controller is in the one tree of cgroup v2.
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
# As udev and containers have them; nft opens /dev/stdin by its name.
ln -sf /proc/self/fd /dev/fd
for each in 0:stdin 1:stdout 2:stderr; do ln -sf "/proc/self/fd/${each%:*}" "/dev/${each#*:}"; done
hostname lab
ip link set lo up

# nested=0: this machine shall give its guests nothing that an ordinary host does not.
modprobe kvm-amd nested=0
for module in tun veth dummy nf_tables nft_chain_nat nft_masq nft_ct fuse overlay; do
    modprobe "$module" || echo "lab: the module $module cannot be loaded"
done
chown root:kvm /dev/kvm && chmod 660 /dev/kvm # as udev's rules have it
chmod 666 /dev/net/tun /dev/fuse

mkdir -p /var/cache/box
ln -sfn /job/kernels /var/cache/box/kernels

# shellcheck disable=SC1091 # written by lab.py for this run
. /job/settings
echo "lab: $(uname -sr), $(nproc) CPUs, $(cut -d' ' -f1 /proc/uptime) s after its start"

# The wheel, unpacked by pip outside (lab.py). Its programs name that pip's interpreter.
cp -a /job/site/. "$LAB_SITE" || finish 90
sed '1s|.*|#!/opt/box/bin/python|' /job/site/bin/box >/opt/box/bin/box || finish 90
chmod 755 /opt/box/bin/box
ln -sf /opt/box/bin/box /usr/local/bin/box
echo "lab: box is installed, $(cut -d' ' -f1 /proc/uptime) s after its start"

if [ "$LAB_WHAT" = shell ]; then
    echo "lab: a root shell; box is in PATH; its end switches the lab off"
    setsid -c bash -l
    finish 0
fi
export LAB_RESULTS=$RESULTS LAB_USER LAB_ISOLATION LAB_ARGUMENTS LAB_GROUPS LAB_PATIENCE
sh /job/tree/tests/kvm/run.sh
finish $?
