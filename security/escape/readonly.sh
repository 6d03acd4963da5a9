#!/bin/sh
# Runs inside a guest whose root is declared read-only, as its root: tries to write to it all the same.
# Every line it says begins with the nonce that only this guest was given. It judges nothing.
nonce=$(cat /run/nonce)

say() { printf '%s %s\n' "$nonce" "$*"; }
try() {
    key=$1
    shift
    if said=$("$@" 2>&1); then
        say "$key" "done $(printf %s "$said" | head -n 1 | cut -c1-100)"
    else
        say "$key" "refused $(printf %s "$said" | tail -n 1 | cut -c1-100)"
    fi
}
append() { printf x >>"$1"; }

attempt() {
    try "$1.create" touch "/$1"
    try "$1.append" append /bin/busybox
    try "$1.delete" rm /bin/ls
    try "$1.replace" mv /etc/passwd /etc/passwd.old
}

attempt plain
try remount.bind mount -o remount,rw,bind /
try remount.plain mount -o remount,rw /
attempt remounted
try tmp.write touch /tmp/works

# the device itself: a node for it, its write protection taken away, then bytes at its start
disk=$(sed -n 's/.* \(vda\)$/\1/p' /proc/partitions)
numbers=$(tr : ' ' <"/sys/block/$disk/dev")
mkdir -p /tmp/dev && mount -t tmpfs -o dev none /tmp/dev
# shellcheck disable=SC2086 # major and minor are two words
mknod /tmp/dev/disk b $numbers
say device.ro "$(cat "/sys/block/$disk/ro")"
try device.unlock blockdev --setrw /tmp/dev/disk
try device.write dd if=/dev/urandom of=/tmp/dev/disk bs=4096 count=16 conv=fsync,notrunc
try device.remount mount -o remount,rw /
attempt unlocked
say finished yes
