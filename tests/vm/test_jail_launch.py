"""A launch succeeds with every layer or fails with its name, and a failure leaves nothing behind.

A layer is made to fail by the kernel, not by a double: the launching side is put under a seccomp
filter that refuses one system call, as a container or a hardened host would.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconcilers.confinement.launch import ORDER
from reconcilers.confinement.rootview import RootFile, root_files
from reconcilers.confinement.start import LaunchRequest, launch
from specs.errors import ConfinementError
from tests.vm.harness import until
from tests.vm.jailed import QEMU, UID, Jail, jail, probe

pytestmark = pytest.mark.needs_root

ROOT = Path(__file__).resolve().parents[2]
# layer -> the system call to refuse, with (argument index, mask, value) where only some are meant
REFUSALS: dict[str, tuple[str, tuple[int, int, int] | None]] = {
    "cgroup": ("write", (2, 0xFFFFFFFF, 1)),
    "binds": ("open_tree", None),
    "namespaces": ("unshare", None),
    "propagation": ("mount", (3, 0xFFFFFFFF, 0x44000)),  # MS_REC | MS_PRIVATE
    "root": ("move_mount", None),
    "first process": ("clone", (0, 0x14000, 0)),  # neither CLONE_THREAD nor CLONE_VFORK
    "session": ("umask", (0, 0o777, 0o077)),
    "proc": ("mount", (3, 0xFFFFFFFF, 0xF)),  # MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    "pivot": ("pivot_root", None),
    "late user namespace": ("setgroups", None),
    "descriptors": ("close_range", None),
    "signals": ("rt_sigaction", (0, 0xFFFFFFFF, 13)),  # SIGPIPE
    "rlimits": ("prlimit64", (1, 0xFFFFFFFF, 4)),  # RLIMIT_CORE
    "scheduler": ("sched_setattr", None),
    "ambient set": ("capset", None),
    "securebits": ("prctl", (0, 0xFFFFFFFF, 28)),
    "bounding set": ("prctl", (0, 0xFFFFFFFF, 24)),
    "identity": ("setresuid", None),
    "capabilities": ("capset", None),
    "no_new_privs": ("prctl", (0, 0xFFFFFFFF, 38)),
    "landlock": ("landlock_restrict_self", None),
    "seccomp": ("seccomp", None),
}
# what is applied only to a helper that serves a directory
OF_HELPERS = ("proc", "late user namespace", "ambient set")
DRIVER = """
import errno, json, os, pathlib, subprocess, sys
import prctl, pyseccomp
from reconcilers.confinement.start import LaunchRequest, launch
from specs.errors import ConfinementError
from tests.vm.jailed import jail, serving
order = json.loads(sys.argv[1])
share = pathlib.Path(order["share"]) if order["share"] else None
with jail(serving(share) if share else None) as made:
    mounts = open("/proc/self/mountinfo").read()
    descriptors = os.listdir("/proc/self/fd")
    if order["groups"]:
        os.setgroups(order["groups"])
    if order["nnp"]:
        prctl.set_no_new_privs(1)
    if order["call"]:
        refuse = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        refuse.set_attr(pyseccomp.Attr.CTL_NNP, 0)
        arguments = []
        if order["argument"]:
            index, mask, value = order["argument"]
            arguments = [pyseccomp.Arg(index, pyseccomp.MASKED_EQ, mask, value)]
        refuse.add_rule(pyseccomp.ERRNO(errno.EPERM), order["call"], *arguments)
        made.listen(3)
        made.close_sockets(); made._sockets.clear()
        descriptors = os.listdir("/proc/self/fd")
        refuse.load()
    answer = {}
    try:
        made.start(*order["argv"], share=share)
        answer["status"] = made.status()
        answer["layer"] = ""
        enter = ["nsenter", "--uts", f"--target={made.pid}", "hostname"]
        answer["hostname"] = subprocess.run(enter, capture_output=True, text=True).stdout.strip()
    except ConfinementError as error:
        answer["layer"] = error.layer
        answer["message"] = str(error)
        answer["mounts"] = open("/proc/self/mountinfo").read() == mounts
        answer["descriptors"] = len(os.listdir("/proc/self/fd")) - len(descriptors)
    answer["members"] = made.group.procs() if answer["layer"] else []
    answer["children"] = [
        line for line in open(f"/proc/self/task/{os.getpid()}/children").read().split()
    ] if answer["layer"] else []
    os.write(1, json.dumps(answer).encode())
"""


def launch_under(
    call: str = "",
    argument: tuple[int, int, int] | None = None,
    *,
    nnp: bool = False,
    groups: tuple[int, ...] = (),
    share: Path | None = None,
) -> dict[str, object]:
    """Launches a probe from a process that was first put under the refusal."""
    order = {
        "call": call,
        "argument": argument,
        "nnp": nnp,
        "groups": groups,
        "share": str(share or ""),
        "argv": [probe()],
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(order)],
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_every_layer_of_the_order_has_a_way_to_fail_here() -> None:
    # root's VMMs need no user namespace; test_users.py makes that layer fail
    assert [*REFUSALS, "exec"] == [name for name, _ in ORDER if name != "user namespace"]


@pytest.mark.parametrize("layer", REFUSALS)
def test_refused_layer_is_named_and_nothing_is_left(layer: str, tmp_path: Path) -> None:
    call, argument = REFUSALS[layer]
    answer = launch_under(call, argument, share=tmp_path if layer in OF_HELPERS else None)
    assert answer["layer"] == layer, answer
    assert layer in str(answer["message"])
    assert answer["members"] == []
    assert answer["children"] == []
    assert answer["mounts"] is True
    assert answer["descriptors"] == 0


@pytest.mark.parametrize("call", ["setgroups", "setresgid"])
def test_refused_part_of_the_identity_is_the_identity_layer(call: str) -> None:
    assert launch_under(call)["layer"] == "identity"


def test_launching_side_with_no_new_privs_still_confines_fully() -> None:
    answer = launch_under(nnp=True)
    assert answer["layer"] == "", answer
    status = answer["status"]
    assert isinstance(status, dict)
    assert status["NoNewPrivs"] == "1"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0


def test_file_that_is_no_program_fails_at_exec(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("words\n")
    text.chmod(0o755)
    with jail() as made, pytest.raises(ConfinementError) as caught:
        made.start(str(text), files=(RootFile(str(text), str(text), True),))
    assert caught.value.layer == "exec"


def test_layers_are_really_there(tmp_path: Path) -> None:
    """Read by hand off /proc, with none of our own readers."""
    with jail() as made:
        made.start_bare()
        status = made.status()
        proc = Path(f"/proc/{made.pid}")
        assert status["Uid"].split() == [str(UID)] * 4
        assert status["Gid"].split() == [str(UID)] * 4
        assert status["Groups"] == ""
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert status["Umask"] == "0077"
        assert status["NSpid"].split()[-1] == "1"
        for name in ("mnt", "pid", "net", "ipc", "uts", "cgroup"):
            theirs = os.readlink(proc / "ns" / name)
            assert theirs != os.readlink(f"/proc/self/ns/{name}"), name
        assert (proc / "environ").read_bytes() == b""
        assert (proc / "root").stat().st_ino == (proc / "cwd").stat().st_ino
        assert (proc / "exe").stat().st_ino == Path(QEMU).stat().st_ino
        assert [
            line.split(":")[0].strip() for line in (proc / "net/dev").read_text().splitlines()[2:]
        ] == ["lo"]
        mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
        assert {mount[4] for mount in mounts} == {"/", *(each.inside for each in root_files(QEMU))}
        for mount in mounts:
            assert {"ro", "nosuid", "nodev"} <= set(mount[5].split(",")), mount
        groups = (proc / "cgroup").read_text()
        for controller in ("memory", "pids", "cpu", "freezer"):
            if f":{controller}:" in groups:
                assert f":{controller}:/{made.names.cgroup}\n" in groups


def test_only_the_given_descriptors_arrive(tmp_path: Path) -> None:
    secret = os.open("/etc/shadow", os.O_RDONLY)
    os.set_inheritable(secret, True)
    far = os.dup2(secret, 251, inheritable=True)
    given = os.open("/etc/hostname", os.O_RDONLY)
    try:
        with jail() as made:
            made.start(probe(), descriptors={9: given})
            found = {
                int(entry.name): os.readlink(entry)
                for entry in Path(f"/proc/{made.pid}/fd").iterdir()
            }
            assert set(found) == {0, 1, 2, 9}
            assert found[0] == "/dev/null"
            assert found[9] == "/etc/hostname"
    finally:
        for each in (secret, far, given):
            os.close(each)


def test_bind_whose_source_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/shadow")
    bad = RootFile(str(tmp_path / "link"), "/file", False)
    with jail() as made, pytest.raises(ConfinementError) as caught:
        made.start(probe(), files=(*root_files(probe()), bad))
    assert caught.value.layer == "binds"


def test_bind_below_a_linked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("/etc")
    bad = RootFile(str(tmp_path / "etc" / "shadow"), "/file", False)
    with jail() as made, pytest.raises(ConfinementError) as caught:
        made.start(probe(), files=(*root_files(probe()), bad))
    assert caught.value.layer == "binds"


@pytest.mark.parametrize("kind", ["directory", "device", "fifo"])
def test_bind_of_anything_but_a_regular_file_is_refused(kind: str, tmp_path: Path) -> None:
    source = {"directory": tmp_path, "device": Path("/dev/zero"), "fifo": tmp_path / "fifo"}[kind]
    if kind == "fifo":
        os.mkfifo(source)
    bad = RootFile(str(source), "/file", False)
    with jail() as made, pytest.raises(ConfinementError) as caught:
        made.start(probe(), files=(*root_files(probe()), bad))
    assert caught.value.layer == "binds"


@pytest.mark.parametrize("inside", ["relative", "/a/../../etc/passwd", "/a//b", "/"])
def test_bind_onto_a_path_that_is_not_plain_is_refused(inside: str) -> None:
    bad = RootFile("/etc/hostname", inside, False)
    with jail() as made, pytest.raises(ConfinementError) as caught:
        made.start(probe(), files=(*root_files(probe()), bad))
    assert caught.value.layer == "root"


def test_bound_descriptor_is_readable_and_nothing_else_is(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel"
    kernel.write_bytes(b"kernel")
    kernel.chmod(0o644)
    for path, code in (("/kernel", 0), ("/etc/passwd", 2), ("/proc/self/status", 2)):
        descriptor = os.open(kernel, os.O_RDONLY)
        with jail() as made:
            made.start(probe(), "read", path, binds={"/kernel": descriptor})
            assert made.ended() == (os.CLD_EXITED, code), path
        os.close(descriptor)


@pytest.mark.parametrize(
    "made_by",
    [
        "ln -s /etc/hostname /dev/null",
        "mknod /dev/real c 1 3 && ln -s real /dev/null",
        "mknod /dev/null c 1 5",
        "touch /dev/null",
        "true",
    ],
)
def test_null_device_that_is_anything_else_is_refused(made_by: str) -> None:
    """In a mount namespace of its own, as in an image whose /dev/null is a link."""
    code = (
        "import sys\nfrom tests.vm.jailed import *\nfrom specs.errors import ConfinementError\n"
        "with jail() as made:\n"
        "  try: made.start(sys.argv[1]); print('started')\n"
        "  except ConfinementError as error: print(error.layer, error.message)"
    )
    script = f'mount -t tmpfs boxtest /dev && {made_by} && exec {sys.executable} -c "$1" "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", code, probe()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("descriptors /dev/null"), done.stdout + done.stderr


def test_groups_and_host_name_of_the_launching_side_stay_outside() -> None:
    answer = launch_under(groups=(4, 27))
    status = answer["status"]
    assert isinstance(status, dict)
    assert status["Groups"] == ""
    assert answer["hostname"] == "box"


def test_group_that_does_not_exist_or_is_in_use_refuses_a_start() -> None:
    with jail() as made:
        made.start_bare()
        first = made.pid
        with pytest.raises(ConfinementError) as caught:
            made.start(probe())
        assert caught.value.layer == "cgroup"
        assert made.group.procs() == [first]
    with jail() as gone:
        gone.group.remove()
        with pytest.raises(ConfinementError) as caught:
            gone.start(probe())
        assert caught.value.layer == "cgroup"


def test_host_identity_zero_is_refused() -> None:
    with jail(uid=0) as made, pytest.raises(ConfinementError) as caught:
        made.start(probe())
    assert caught.value.layer == "identity"


async def test_cancelled_launch_leaves_nothing_running() -> None:
    with jail() as made:
        null = os.open("/dev/null", os.O_WRONLY)
        request = LaunchRequest(made.names, made.want, (probe(),), {}, null)
        task = asyncio.create_task(launch(request, root_files=root_files(probe())))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.close(null)
        assert made.group.procs() == []


def test_vmm_outlives_the_process_that_started_it() -> None:
    code = (
        "import os\nfrom tests.vm.jailed import *\nmade = Jail()\n"
        "made.start(probe())\nprint(made.names.instance, made.pid, flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    instance, pid = done.stdout.split()
    group = Jail.group_of(instance)
    try:
        assert group.procs() == [int(pid)]
    finally:
        group.kill()
        group.remove()


def test_start_ends_when_its_caller_dies_in_the_middle() -> None:
    """Killed before it said go: neither launcher nor VMM stays."""
    code = (
        "import os, signal, threading\nfrom reconcilers.confinement import following\n"
        "from tests.vm.jailed import *\nmade = Jail()\nprint(made.names.instance, flush=True)\n"
        "real = os.pidfd_open\n"
        "os.pidfd_open = lambda pid: os.kill(os.getpid(), signal.SIGKILL)\n"
        "made.start(probe())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
    group = Jail.group_of(done.stdout.strip())
    try:
        until(lambda: group.procs() == [], 30, "neither of them runs")
    finally:
        group.kill()
        group.remove()
