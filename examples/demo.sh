#!/bin/sh
# The story that `./dev demo` tells: a Boxfile becomes a confined microVM, is broken by hand, is mended,
# and leaves nothing behind. It uses box only as a user does, and looks at the host with its own eyes.
set -eu

cd "$(dirname -- "$0")/.."
PATH=$PWD/.venv/bin:$PATH
BOX_HOME=$(mktemp -d /tmp/box-demo.XXXXXX)
export PATH BOX_HOME
LOG=$BOX_HOME/controller.log
CONTROLLER=
VMM=
STARTED=$(date +%s)
RUNTIME=/run/box
[ "$(id -u)" -eq 0 ] || RUNTIME=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/box # a user without: in BOX_HOME

chapter() { printf '\n%s\n' "$*"; }
tell() { printf '  %s\n' "$*"; }

show() { # runs a command, printed as a user would type it
    printf '  $'
    for word; do
        case $word in
            *[!A-Za-z0-9_./=:-]*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    output=$("$@" 2>&1) || fail "it answered: $output"
    [ -z "$output" ] || printf '%s\n' "$output" | sed 's/^/      /'
}

fail() {
    printf '\ndemo: %s\n' "$*" >&2
    if [ -s "$LOG" ]; then
        printf 'The last lines of the controller:\n' >&2
        tail -n 20 "$LOG" | sed 's/^/    /' >&2
    fi
    exit 1
}

until_true() { # SECONDS COMMAND...; the shell's clock is enough here
    left=$(($1 * 10))
    shift
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.1
    done
}

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

alive() { kill -0 "$1" 2>/dev/null; }
dead() { ! alive "$1"; }
answers_or_dies() { test -S "$BOX_HOME/box.sock" || dead "$CONTROLLER"; }
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

instance_groups() { # where the demo's control groups are, if there are any
    instance=$(cat "$BOX_HOME/instance" 2>/dev/null) || return 0
    for tree in /sys/fs/cgroup /sys/fs/cgroup/* "/sys/fs/cgroup/box-users/$(id -u)" \
        /sys/fs/cgroup/*/"box-users/$(id -u)"; do
        [ ! -d "$tree/box/$instance" ] || printf '%s\n' "$tree/box/$instance"
    done
}

machine_is_there() { for path in $(instance_groups); do [ ! -d "$path/hello" ] || return 0; done; return 1; }

removed_groups() {
    for path in $(instance_groups); do
        rmdir "$path/hello" 2>/dev/null || true
        rmdir "$path" "${path%/*}" 2>/dev/null || true
    done
    [ -z "$(instance_groups)" ]
}

clean_up() { # also of a machine that was only about to start when something failed
    trap - EXIT INT TERM
    rm -f "$BOX_HOME"/boxes/*.box.yaml
    if [ -n "$CONTROLLER" ] && alive "$CONTROLLER"; then
        box wait hello --for deleted --timeout 30 >/dev/null 2>&1 || true
        kill "$CONTROLLER" 2>/dev/null || true
        until_true 10 dead "$CONTROLLER" || kill -9 "$CONTROLLER" 2>/dev/null || true
        wait "$CONTROLLER" 2>/dev/null || true
    fi
    # Ctrl-C ends the controller too, before it could.
    ! machine_is_there || timeout 30 box controller --once >>"$LOG" 2>&1 || true
    for path in $(instance_groups); do
        [ ! -d "$path/hello" ] || xargs -r kill -9 <"$path/hello/cgroup.procs" 2>/dev/null || true
    done
    until_true 10 removed_groups || true
    instance=$(cat "$BOX_HOME/instance" 2>/dev/null || true)
    [ -z "$instance" ] || rm -rf "${RUNTIME:?}/$instance"
    rm -rf "$BOX_HOME"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

chapter '1. A controller watches an empty folder.'
mkdir -p "$BOX_HOME/boxes"
tell "BOX_HOME is $BOX_HOME, private to this demo."
box controller >"$LOG" 2>&1 &
CONTROLLER=$!
until_true 20 answers_or_dies || true
test -S "$BOX_HOME/box.sock" || fail 'the controller did not open its socket'
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
