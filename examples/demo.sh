#!/bin/sh
# The story that `./dev demo` tells: a Boxfile becomes a confined microVM, is broken by hand, is mended,
# and leaves nothing behind. It uses box only as a user does, and looks at the host with its own eyes.
set -eu

cd "$(dirname -- "$0")/.."
NAMES=hello
VMM=
STARTED=$(date +%s)
. examples/story.sh

vmm_pid() { # what box reports, 0 while it reports none
    box get hello -o json 2>/dev/null | python -c '
import json, sys
try:
    seen = json.load(sys.stdin)
except ValueError:
    seen = {}
seen = seen[0] if isinstance(seen, list) and seen else seen
print((seen.get("vmm") or {}).get("pid", 0) if isinstance(seen, dict) else 0)'
}

has_new_vmm() { new=$(vmm_pid); [ "$new" -gt 0 ] && [ "$new" != "$VMM" ] && alive "$new"; }
status_of() { awk -v key="$1:" '$1 == key {print $2}' "/proc/$VMM/status"; }

groups_or_none() { groups=$(status_of Groups) && printf '%s' "${groups:-none}"; }

cgroups_of() { # existing directories of a process's cgroups, from its own list
    while IFS=: read -r _ _ path; do
        for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
            [ "$path" = / ] || ! [ -d "$tree$path" ] || printf '%s\n' "$tree$path"
        done
    done <"/proc/$1/cgroup" | sort -u
}

processes_in_netns() { # how many processes live in the network namespace $1
    count=0
    for ns in /proc/[0-9]*/ns/net; do
        [ "$(readlink "$ns" 2>/dev/null)" != "$1" ] || count=$((count + 1))
    done
    printf '%s' "$count"
}

# By name: others may mount what they like meanwhile.
gone_mounts() { ! grep -qF -e "$BOX_HOME" -e "$INSTANCE" /proc/self/mounts; }

gone_cgroups() { for path in $CGROUPS; do [ ! -d "$path" ] || return 1; done; }

chapter '1. A controller watches an empty folder.'
begin
show box get

chapter '2. A Boxfile is dropped into it.'
dropped=$(date +%s)
show cp examples/hello.box.yaml "$BOX_HOME/boxes/"
show box wait hello --for Ready --timeout 180
tell "It took $(($(date +%s) - dropped)) s from the copy to Ready."
show box get
VMM=$(vmm_pid)
[ "$VMM" -gt 0 ] || fail 'box reports no process for the machine'

chapter '3. A command runs in it, on a kernel of its own.'
show uname -r
show box exec hello -- uname -r
# shellcheck disable=SC2016 # the guest's shell is to expand it
show box exec hello -- sh -c 'echo "$GREETING from $(id -un)" | tee /data/note && sync'

chapter '4. The process that emulates the machine is in a cage. Linux itself says so, in /proc:'
tell "process       $VMM, user $(status_of Uid), supplementary groups: $(groups_or_none)"
tell "capabilities  permitted $(status_of CapPrm), bounding $(status_of CapBnd)"
tell "system calls  filter mode $(status_of Seccomp), no new privileges $(status_of NoNewPrivs)"
tell "network       $(tail -n +3 "/proc/$VMM/net/dev" | cut -d: -f1 | tr -d ' ' | tr '\n' ' ')only"
NETNS=$(readlink "/proc/$VMM/ns/net")
CGROUPS=$(cgroups_of "$VMM")

chapter '5. Somebody kills that process. The folder still says the sandbox should exist.'
show kill -9 "$VMM"
until_true 180 has_new_vmm || fail 'no new machine within 180 s'
show box wait hello --for Ready --timeout 180
show box drift hello
VMM=$(vmm_pid)
tell 'It is another machine with the same /data:'
show box exec hello -- cat /data/note
NETNS="$NETNS $(readlink "/proc/$VMM/ns/net")"
CGROUPS="$CGROUPS $(cgroups_of "$VMM")"
INSTANCE=$(cat "$BOX_HOME/instance")

chapter '6. The Boxfile is removed, and so is everything it stood for.'
show rm "$BOX_HOME/boxes/hello.box.yaml"
until_true 30 dead "$VMM" || fail "process $VMM is still there"
tell "process $VMM: gone"
until_true 30 gone_cgroups || fail 'a cgroup is still there'
tell 'cgroups: gone'
for namespace in $NETNS; do
    [ "$(processes_in_netns "$namespace")" = 0 ] || fail "somebody still lives in $namespace"
done
tell 'network namespaces: gone'
until_true 30 gone_mounts || fail "a mount is still there: $(grep -F -e "$BOX_HOME" -e "$INSTANCE" /proc/self/mounts)"
tell 'mounts: gone'
kept=$(find "$BOX_HOME/disks" -type f 2>/dev/null | head -n 1)
[ -z "$kept" ] || tell "its data, because the Boxfile said so, was set aside: ${kept#"$BOX_HOME/"}"
show box get

chapter "That was the whole story, in $(($(date +%s) - STARTED)) s. The demo now stops its controller and removes its folder."
