"""Shared directories with the virtiofsd that set-up installed: each Debian has another one."""

from __future__ import annotations

SCRIPT = """
set -eu
cd /tmp
export BOX_HOME=$(mktemp -d)
mkdir "$BOX_HOME/boxes"
ro=$(mktemp -d) rw=$(mktemp -d)
chmod 755 "$ro"
echo shown >"$ro/text"
for isolation in $ISOLATIONS; do
    cat >"$BOX_HOME/boxes/$isolation.box.yaml" <<END
accel: tcg
cpus: 1
ram_mib: 192
isolation: $isolation
data: {size_mib: 32}
mounts:
- {host: $ro, guest: /ro}
END
    [ "$isolation" = "$NO_RW" ] ||
        echo "- {host: $rw, guest: /rw, mode: rw}" >>"$BOX_HOME/boxes/$isolation.box.yaml"
done
$BOX controller 2>"$BOX_HOME/log" &
controller=$!
trap 'kill $controller' EXIT
until $BOX version | grep -q ', up'; do sleep 0.2; done
for isolation in $ISOLATIONS; do
    $BOX wait "$isolation" --for Ready --timeout 80 || {
        $BOX logs --console "$isolation"; $BOX describe "$isolation"; cat "$BOX_HOME/log"; exit 1; }
    $BOX exec "$isolation" -- sh -c 'cat /ro/text; ! echo changed >/ro/text'
    [ "$isolation" = "$NO_RW" ] || $BOX exec "$isolation" -- sh -c "echo by $isolation >/rw/new"
    $BOX verify "$isolation" >/dev/null
    $BOX delete "$isolation" >/dev/null
done
cat "$ro/text" "$rw/new"
stat -c 'it is of %u' "$rw/new"
"""


def share(box: str, isolations: str, without_rw: str = "") -> str:
    """A shell line: what the guests see and write, then what the host has of it."""
    return f"BOX={box} ISOLATIONS='{isolations}' NO_RW={without_rw}\n{SCRIPT}"
