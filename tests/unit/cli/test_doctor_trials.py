"""`box doctor` where the thing it tries does not work: it says so, with what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.unit.cli.support import environment
from tests.unit.elsewhere import unknown_user

ARGV = [sys.executable, "-m", "controller.cli.main", "doctor", "-o", "json"]
# SECCOMP_SET_MODE_FILTER without flags, as the launcher calls it, is refused; what libseccomp asks
# the kernel about is not
NO_FILTERS = """
import errno, os, sys
import pyseccomp
ours = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
plain = [pyseccomp.Arg(0, pyseccomp.EQ, 1), pyseccomp.Arg(1, pyseccomp.EQ, 0)]
ours.add_rule(pyseccomp.ERRNO(errno.EACCES), "seccomp", *plain)
ours.load()
os.execv(sys.argv[1], sys.argv[1:])
"""


# In mounts of its own, which nobody else sees.
HIDDEN = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"]


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="boxtest-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def doctor(home: Path, prefix: Sequence[str] = ()) -> tuple[int, dict[str, dict[str, str]]]:
    """What it answers, and every check by name."""
    done = subprocess.run(
        [*prefix, *ARGV], capture_output=True, env=environment(home), timeout=60, check=False
    )
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["checks"]}


def without(script: str, *arguments: str) -> list[str]:
    return [*HIDDEN, f'{script}; exec "$@"', "sh", *arguments]


def test_filter_of_system_calls_is_tried_and_its_failure_named(tmp_path: Path) -> None:
    good = doctor(tmp_path / "home")[1]["seccomp"]
    assert good["state"] == "ok" and "ended the child" in good["found"], good
    code, found = doctor(tmp_path / "home", [sys.executable, "-c", NO_FILTERS])
    bad = found["seccomp"]
    assert code == 1 and bad["state"] == "fail" and "CONFIG_SECCOMP_FILTER" in bad["fix"]
    assert bad["found"] == "a filter of system calls is not put in force"


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("prefix", "name", "state", "found", "fix"),
    [
        (["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"],
         "namespaces", "fail", "refused: mount", "on the host itself"),
        (["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"],
         "launching side", "fail", "CAP_SYS_ADMIN", "outside a container"),
        (["setarch", "--uname-2.6"], "host kernel", "fail", "2.6.", "Linux 5.12"),
        (["unshare", "--net"], "forwarding", "warn", "ip_forward is 0", "ip_forward=1"),
        (without("mount -t tmpfs none /dev/net"), "tap devices", "warn", "/dev/net/tun", "tun"),
        (without("for f in /usr/lib*/virtiofsd /usr/lib/qemu/virtiofsd; do"
                 " test ! -e $f || mount --bind /dev/null $f; done"),
         "virtiofsd", "warn", "not installed", "apt-get install"),
        (without("mount --bind /dev/null $(command -v nft)"),
         "nftables", "warn", "not installed", "apt-get install nftables"),
        (without("mount --bind /dev/null /usr/bin/passt"),
         "passt", "warn", "not installed", "apt-get install passt"),
        (without("mount --bind /dev/null $(command -v mksquashfs)"),
         "image tools", "fail", "mksquashfs", "apt-get install squashfs-tools"),
        (without("test ! -e /usr/bin/skopeo || mount --bind /dev/null /usr/bin/skopeo"),
         "skopeo", "warn", "not installed", "apt-get install skopeo"),
        (without('mkdir -p "$BOX_HOME"; mount -t tmpfs -o size=40m,mode=0700 none "$BOX_HOME"'),
         "disk space", "fail", "0.0 GiB free", "free some space"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_what_is_missing_is_named_with_what_to_do(
    tmp_path: Path, prefix: list[str], name: str, state: str, found: str, fix: str
) -> None:
    code, checks = doctor(tmp_path / "home", prefix)
    bad = checks[name]
    assert (bad["state"], found in bad["found"], fix in bad["fix"]) == (state, True, True), bad
    assert code == 1 or state == "warn"


# What a kernel without CONFIG_NFT_CONNLIMIT answers; everything else is nft's own answer.
NO_COUNTING = r"""
mkdir -p "$BOX_HOME"; cp "$(command -v nft)" "$BOX_HOME/nft"
cat > "$BOX_HOME/stand-in" <<END
#!/bin/sh
given="\$(if test "\$*" = "-j -f -"; then cat; fi)"
case "\$given \$*" in *"ct count"*)
    echo "Error: Could not process rule: No such file or directory" >&2; exit 1;;
esac
printf %s "\$given" | "$BOX_HOME/nft" "\$@"
END
chmod 755 "$BOX_HOME" "$BOX_HOME/nft" "$BOX_HOME/stand-in"
nft=$(command -v nft); mount --bind "$BOX_HOME/stand-in" $nft"""


@pytest.mark.needs_root
@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
def test_kernel_that_counts_no_connections_is_named(open_path: Path, user: bool) -> None:
    become = unknown_user(os.getpid() + 100_000) if user else []
    good = doctor(open_path / "good", become)[1]["nftables"]
    assert good["state"] == "ok" and "counts connections" in good["found"], good
    bad = doctor(open_path / "home", [*without(NO_COUNTING), *become])[1]["nftables"]
    assert bad["state"] == "warn" and "CONFIG_NFT_CONNLIMIT" in bad["fix"], bad
    assert "No such file or directory" in bad["found"], bad


@pytest.mark.needs_root
def test_home_too_deep_for_a_socket_is_named(tmp_path: Path) -> None:
    """An ordinary user's sockets may lie in the home; root's never do."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    user = unknown_user(os.getpid() + 100_000)
    bad = doctor(deep / "home", user)[1]["socket paths"]
    assert bad["state"] == "fail" and "characters fit" in bad["found"], bad
    assert "shorter BOX_HOME" in bad["fix"]
