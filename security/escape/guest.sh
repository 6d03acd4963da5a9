#!/bin/sh
# Runs inside the guest, as its root, from standard input: tries what a guest must not be able to do.
# usage: sh -s -- CANARY_FILE BOX_HOME RUNTIME_FOLDER
# Every line it says begins with the nonce that only this guest was given. It judges nothing.
nonce=$(cat /run/nonce)
canary=$1 home=$2 runtime=$3

say() { printf '%s %s\n' "$nonce" "$*"; }

# try KEY COMMAND...: "KEY done" when it succeeded, "KEY refused WHY" when not; without a further
# process, of which there would be hundreds
newline='
'
try() {
    key=$1
    shift
    if said=$("$@" 2>&1); then
        set -- "done ${said%%"$newline"*}"
    else
        set -- "refused ${said##*"$newline"}"
    fi
    printf '%s %s %.108s\n' "$nonce" "$key" "$1"
}

exists() { ls -d "$1"; }
append() { printf x >>"$1"; }
overwrite() { printf x >"$1"; }
copy_over() { cp /bin/busybox "$1"; }

# -- the kernel
say kernel.release "$(uname -r)"
say kernel.version "$(cat /proc/version)"
say kernel.boot_id "$(cat /proc/sys/kernel/random/boot_id)"

# -- paths of the host, straight, from below, and through other processes
number=0
for path in "$canary" "$home" "$home/box.sock" "$home/instance" "$runtime" /run/box /var/lib/box; do
    number=$((number + 1))
    try "paths.$number" exists "$path"
    try "up.$number" exists "/data/../../../../../../../../..$path"
    for root in /proc/1/root /proc/1/cwd /proc/self/root; do
        try "through.$number.${root#/proc/}" exists "$root$path"
    done
done
ln -sf "$canary" /tmp/link
try link.canary cat /tmp/link
say disks "$(sed 1,2d /proc/partitions | tr -s ' ' | tr '\n' ';')"

# -- the agent
before=$(sha256sum </proc/1/exe)
for file in /proc/[0-9]*/exe; do
    case $(readlink "$file") in
        /init*) try "agent.append.${file%/exe}" append "$file"
                try "agent.copy.${file%/exe}" copy_over "$file" ;;
    esac
done
try agent.kill kill -9 1
try agent.file exists /init
after=$(sha256sum </proc/1/exe)
[ "$before" = "$after" ] && say agent.same yes

# -- the channel and the API
ports=0
for port in /sys/class/virtio-ports/*; do
    [ -e "$port/dev" ] || continue
    ports=$((ports + 1))
    say "port.$ports.name" "$(cat "$port/name")"
    rm -f /port
    numbers=$(cat "$port/dev")
    mknod /port c "${numbers%:*}" "${numbers#*:}"
    try "port.$ports.open" dd if=/port of=/dev/null bs=1 count=0
    rm -f /port
done
say ports "$ports"
say sockets "$(grep -c 'box\.sock\|agent\.sock\|qmp\.sock' /proc/net/unix)"
try api.find sh -c 'find / -xdev \( -name box.sock -o -name agent.sock -o -name qmp.sock \) | grep .'

# -- devices
try kvm.node exists /dev/kvm
rm -f /kvm
mknod /kvm c 10 232
try kvm.open dd if=/kvm of=/dev/null bs=1 count=0
rm -f /kvm
say kvm.misc "$(grep -c kvm /proc/misc)"
rm -f /mem
mknod /mem c 1 1
try mem.open dd if=/mem of=/dev/null bs=1 count=1
rm -f /mem
net=$(for device in /sys/class/net/*; do printf '%s ' "${device##*/}"; done)
say net.devices "$net"
virtio=
for device in /sys/bus/virtio/devices/*/device; do
    virtio="$virtio $(cat "$device")"
done
say virtio.devices "$virtio"
say pci.devices "$(find /sys/bus/pci/devices -type l 2>/dev/null | wc -l)"

# -- the end: what it did has hurt nobody, this line included
say finished yes
