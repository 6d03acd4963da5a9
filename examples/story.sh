# shellcheck shell=sh
# What the stories beside this file are told with: a home and a controller of their own, commands shown as
# a person types them, and an end that leaves nothing behind. Read by them (`.`), never run by itself.
# NAMES, which the story sets, are the sandboxes it makes.

PATH=$PWD/.venv/bin:$PATH
BOX_HOME=$(mktemp -d /tmp/box-demo.XXXXXX)
export PATH BOX_HOME
LOG=$BOX_HOME/controller.log
CONTROLLER=
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
    # What it says beside its output is about waiting.
    output=$("$@" 2>"$BOX_HOME/said") || fail "it answered: $output $(cat "$BOX_HOME/said")"
    [ -z "$output" ] || printf '%s\n' "$output" | sed 's/^/      /'
}

fail() {
    printf '\nthe story broke off: %s\n' "$*" >&2
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

alive() { kill -0 "$1" 2>/dev/null; }
dead() { ! alive "$1"; }
answers_or_dies() { test -S "$BOX_HOME/box.sock" || dead "$CONTROLLER"; }

instance_groups() { # where the demo's control groups are, if there are any
    instance=$(cat "$BOX_HOME/instance" 2>/dev/null) || return 0
    for tree in /sys/fs/cgroup /sys/fs/cgroup/* "/sys/fs/cgroup/box-users/$(id -u)" \
        /sys/fs/cgroup/*/"box-users/$(id -u)"; do
        [ ! -d "$tree/box/$instance" ] || printf '%s\n' "$tree/box/$instance"
    done
}

machine_is_there() {
    for path in $(instance_groups); do
        for name in $NAMES; do [ ! -d "$path/$name" ] || return 0; done
    done
    return 1
}

removed_groups() {
    for path in $(instance_groups); do
        for name in $NAMES; do rmdir "$path/$name" 2>/dev/null || true; done
        rmdir "$path" "${path%/*}" 2>/dev/null || true
    done
    [ -z "$(instance_groups)" ]
}

clean_up() { # also of a machine that was only about to start when something failed
    trap - EXIT INT TERM
    rm -f "$BOX_HOME"/boxes/*.box.yaml
    if [ -n "$CONTROLLER" ] && alive "$CONTROLLER"; then
        for name in $NAMES; do box wait "$name" --for deleted --timeout 30 >/dev/null 2>&1 || true; done
        kill "$CONTROLLER" 2>/dev/null || true
        until_true 10 dead "$CONTROLLER" || kill -9 "$CONTROLLER" 2>/dev/null || true
        wait "$CONTROLLER" 2>/dev/null || true
    fi
    # Ctrl-C ends the controller too, before it could.
    ! machine_is_there || timeout 30 box controller --once >>"$LOG" 2>&1 || true
    for path in $(instance_groups); do
        for name in $NAMES; do
            [ ! -d "$path/$name" ] || xargs -r kill -9 <"$path/$name/cgroup.procs" 2>/dev/null || true
        done
    done
    until_true 10 removed_groups || true
    instance=$(cat "$BOX_HOME/instance" 2>/dev/null || true)
    [ -z "$instance" ] || rm -rf "${RUNTIME:?}/$instance"
    rm -rf "$BOX_HOME"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

begin() { # a controller in the background
    mkdir -p "$BOX_HOME/boxes"
    tell "BOX_HOME is $BOX_HOME, private to this demo."
    box controller >"$LOG" 2>&1 &
    CONTROLLER=$!
    until_true 20 answers_or_dies || true
    test -S "$BOX_HOME/box.sock" || fail 'the controller did not open its socket'
}
