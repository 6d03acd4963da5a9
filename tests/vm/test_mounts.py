"""Host directories in a guest: what it reads and writes, what it never leaves, what is mended.

What a guest did is looked at on the host, where it counts; what it says is not believed.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.vm.harness import READY, until
from tests.vm.shares import GROUP, OWNER, STRANGER, Shares, boxfile, helper_processes, made, owned

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def oak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    with made(tmp_path_factory.mktemp("mounts")) as shares:
        shares.start("oak")
        yield shares


# -- reading and writing


def test_private_files_of_the_owner_are_readable_and_a_strangers_are_not(oak: Shares) -> None:
    assert oak.sh("cat /mnt/rw/private").stdout == b"of the owner\n"
    refused = oak.sh("cat /mnt/ro/secret")
    assert refused.returncode != 0 and refused.stdout == b""
    assert oak.sh("stat -c %u:%g /mnt/ro/secret").stdout == b"65534:65534\n"


def test_nothing_is_written_through_a_read_only_mount_however_it_is_remounted(oak: Shares) -> None:
    before = {path.name: path.lstat().st_mtime_ns for path in oak.ro.iterdir()}
    oak.sh(
        "mount -o remount,rw /mnt/ro; echo x > /mnt/ro/new; echo x >> /mnt/ro/text;"
        "rm -f /mnt/ro/text; mv /mnt/ro/text /mnt/ro/moved; chmod 777 /mnt/ro/text;"
        "mkdir -p /tmp/again; mount -t virtiofs mount0 /tmp/again; touch /tmp/again/new"
    )
    assert {path.name: path.lstat().st_mtime_ns for path in oak.ro.iterdir()} == before
    assert (oak.ro / "text").read_text() == "read me\n"
    assert stat.S_IMODE((oak.ro / "text").stat().st_mode) == 0o644


@pytest.mark.parametrize("isolation", ["strict", "standard"])
def test_what_the_guest_writes_belongs_to_the_owner_of_the_directory(
    oak: Shares, isolation: str
) -> None:
    name = "oak"
    if isolation == "standard":
        name = "ash"
        folder = owned(oak.rw.parent / "standard", 0o700)
        oak.home.put(name, boxfile((folder, "/mnt/rw", "rw"), more="isolation: standard\n"))
        oak.home.ready(name)
    else:
        folder = oak.rw
    script = "cd /mnt/rw && echo new > new && mkdir d && ln -s new l && chmod 600 new && id -u"
    assert oak.sh(script, name).stdout == b"0\n"
    for each in ("new", "d", "l"):
        found = (folder / each).lstat()
        assert (found.st_uid, found.st_gid) == (OWNER, GROUP), each
    assert (folder / "new").read_text() == "new\n"
    assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o600
    (folder / "new").write_text("changed by the host\n")
    assert oak.sh("cat /mnt/rw/new", name).stdout == b"changed by the host\n"
    oak.sh("cd /mnt/rw && rm -r new d l", name)
    assert not (folder / "new").exists()
    if name == "ash":
        oak.delete(name)


def test_a_directory_whose_name_is_no_text_is_shared_as_any_other(oak: Shares) -> None:
    """proc(5) shows such a name as it is, with what other readers take for the end of a line."""
    odd, link = os.fsencode(oak.rw.parent) + b"/odd\xff\r\x0bname", oak.rw.parent / "odd"
    os.mkdir(odd, 0o755)
    os.symlink(odd, os.fsencode(link))
    oak.home.put("elm", boxfile((link, "/mnt/odd", "ro")))
    oak.home.ready("elm")
    assert oak.sh("grep -c ' /mnt/odd virtiofs ' /proc/mounts", "elm").stdout == b"1\n"
    oak.delete("elm")


def test_links_and_dots_lead_nowhere_but_into_the_guest(oak: Shares) -> None:
    shadow = Path("/etc/shadow").read_bytes()
    dots = "../" * 12
    for path in ("absolute", "up", f"{dots}etc/shadow", f"{dots}proc/1/root/etc/shadow"):
        found = oak.sh(f"cat /mnt/ro/{path}").stdout
        assert not found or found not in shadow
    # in the guest the other mount lies where this one leads
    assert oak.sh("cat /mnt/ro/relative").stdout == b"of the owner\n"
    assert oak.sh("ln -s /etc /mnt/rw/out; ls /mnt/rw/out/shadow").returncode != 0
    assert oak.sh("rm /mnt/rw/out").returncode == 0


def test_nothing_is_left_that_would_count_on_the_host(oak: Shares) -> None:
    folder, vmm = owned(oak.rw / "attack", 0o755), oak.home.pid("oak")
    program = oak.rw / "program"
    source = Path(__file__).with_name("share_attack.c")
    subprocess.run(["cc", "-static", "-o", program, source], check=True, timeout=60)
    os.chown(program, OWNER, GROUP)
    said = oak.sh("/mnt/rw/program /mnt/rw/attack").stdout.decode()
    answers = {name: int(number) for name, number in (line.split() for line in said.splitlines())}
    assert answers.pop("plain") == 0, "the attack did not begin"
    # mkdir(2) leaves set-ID bits out by itself, so it succeeds; what came of it is looked at below
    assert [name for name, number in answers.items() if number == 0] == ["mkdir"]
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), path.name
        assert not mode & (stat.S_ISUID | stat.S_ISGID), path.name
        assert os.listxattr(path) == [], path.name
    assert (oak.home.pid("oak"), len(helper_processes(oak.home))) == (vmm, 2)


def test_setuid_bit_of_the_hosts_own_file_goes_when_the_guest_writes_to_it(oak: Shares) -> None:
    program = owned(oak.rw / "tool", 0o4755, "harmless\n")
    oak.sh("echo evil >> /mnt/rw/tool")
    assert program.read_text() == "harmless\nevil\n"
    assert not program.stat().st_mode & stat.S_ISUID


def test_guest_sees_the_mounts_as_nosuid_and_nodev(oak: Shares) -> None:
    lines = oak.sh("grep virtiofs /proc/mounts").stdout.decode().splitlines()
    options = {line.split()[1]: set(line.split()[3].split(",")) for line in lines}
    assert {"nosuid", "nodev"} <= options["/mnt/ro"] & options["/mnt/rw"]
    assert not {"noexec"} & (options["/mnt/ro"] | options["/mnt/rw"])


def test_mounts_are_there_again_when_the_workloads_namespace_was_ended(oak: Shares) -> None:
    """A guest's root can reach the group of its init, and so end everything it sees."""
    oak.sh("mkdir -p /tmp/g; mount -t cgroup2 g /tmp/g; echo 1 > /tmp/g/init/cgroup.kill")
    found = until(partial(_output, oak, "cat /mnt/ro/text; ls /tmp/g"), 60, "commands run again")
    assert found == b"read me\n"  # what was mounted by hand is not: it is another namespace


def _output(shares: Shares, script: str) -> bytes:
    return shares.sh(script).stdout


# -- what is read of a helper


def test_each_helper_is_read_back_with_every_layer(oak: Shares) -> None:
    readings = oak.home.ready("oak")["confinement"]
    assert [each for each in readings if not each["ok"]] == []
    layers = {each["layer"] for each in readings}
    for index in (0, 1):
        of_one = {r["layer"] for r in readings if r["item"].startswith(f"virtiofsd {index}: ")}
        assert of_one == {layer for layer in layers if layer[:6] not in ("socket", "mounts")}


def test_helper_has_the_directory_as_its_root_and_no_right_on_the_host(oak: Shares) -> None:
    """Read by hand off /proc, with none of our own readers."""
    uids = set()
    for helper, folder in zip(oak.helpers(), (oak.ro, oak.rw), strict=True):
        proc = Path(f"/proc/{helper['pid']}")
        assert (proc / "root").stat().st_ino == folder.stat().st_ino
        assert os.readlink(proc / "ns/user") != os.readlink("/proc/self/ns/user")
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        uids.add(status["Uid"].split()[0])
        assert (proc / "uid_map").read_text().split() == ["0", status["Uid"].split()[0], "1"]
        assert int(status["CapEff"], 16) == 1 << 1  # CAP_DAC_OVERRIDE, in that namespace
        assert int(status["CapBnd"], 16) == int(status["CapAmb"], 16) == 0
        assert status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1"
        mounts = (proc / "mountinfo").read_text().splitlines()
        assert len(mounts) == 1
        assert ("ro" if folder == oak.ro else "rw") in mounts[0].split()[5].split(",")
    assert uids == {str(Path(f"/proc/{oak.home.pid('oak')}").stat().st_uid)}


def test_describe_shows_where_a_host_path_leads(oak: Shares) -> None:
    link = oak.rw.parent / "link"
    link.symlink_to(oak.ro)
    oak.home.put("elm", boxfile((link, "/src", "ro")))
    oak.home.ready("elm")
    try:
        shown = oak.home.box("describe", "elm").stdout.decode()
        assert any(str(link) in line and str(oak.ro) in line for line in shown.splitlines())
        theirs, others = oak.helpers("elm")[0], oak.helpers("oak")[1]
        # strict sandboxes are strangers to each other's helpers and directories too
        owners = {Path(f"/proc/{each['pid']}").stat().st_uid for each in (theirs, others)}
        assert len(owners) == 2
        assert oak.sh("ls /mnt", "elm").stdout == b""
    finally:
        oak.delete("elm")


# -- drift


def test_dead_helper_is_noticed_at_once_and_the_vm_replaced(oak: Shares) -> None:
    former, helpers = oak.home.pid("oak"), {each["pid"] for each in oak.helpers()}
    os.kill(oak.helpers()[1]["pid"], signal.SIGKILL)
    oak.home.mended("oak", "mounts[1].virtiofsd", READY)
    oak.home.ready("oak")
    assert oak.home.pid("oak") != former
    assert oak.sh("cat /mnt/rw/private").stdout == b"of the owner\n"
    until(lambda: len(helper_processes(oak.home)) == 2, 10, "two helpers")
    assert not helpers & helper_processes(oak.home)


def test_stopped_helper_goes_on_and_its_vm_with_it(oak: Shares) -> None:
    former, helper = oak.home.pid("oak"), oak.helpers()[0]["pid"]
    os.kill(helper, signal.SIGSTOP)
    oak.home.look_again()
    oak.home.mended("oak", "mounts[0].virtiofsd", READY)
    assert oak.sh("cat /mnt/ro/text").stdout == b"read me\n"
    assert (oak.home.pid("oak"), oak.helpers()[0]["pid"]) == (former, helper)


def test_replaced_directory_is_drift_and_the_new_one_is_shared(oak: Shares) -> None:
    folder = oak.rw.parent / "replaced"
    owned(folder, 0o755)
    (folder / "which").write_text("first\n")
    oak.home.put("fir", boxfile((folder, "/src", "ro")))
    oak.home.ready("fir")
    os.chown(folder, STRANGER, STRANGER)
    oak.home.look_again()
    drift = oak.home.mended("fir", "mounts[0].owner")
    assert drift["desired"] == f"{STRANGER}:{STRANGER}"
    oak.home.ready("fir")
    folder.rename(folder.with_name("former"))
    owned(folder, 0o755)
    (folder / "which").write_text("second\n")
    oak.home.look_again()
    drift = oak.home.mended("fir", "mounts[0].host")
    inode = folder.stat().st_ino
    assert f":{inode})" in drift["desired"] and f":{inode})" not in drift["observed"]
    oak.home.ready("fir")
    assert oak.sh("cat /src/which", "fir").stdout == b"second\n"


def test_removed_directory_stops_the_vm_with_the_reason_until_it_is_back(oak: Shares) -> None:
    folder = oak.rw.parent / "replaced"
    away = folder.with_name("away")
    folder.rename(away)
    oak.home.look_again()
    refused = ("False", "MountRefused")
    until(lambda: oak.home.condition("fir", "Ready") == refused, 40, "MountRefused")
    until(lambda: not oak.home.vmms("fir"), 40, "its VM is gone")
    message = oak.home.box("describe", "fir").stdout.decode()
    assert f"mounts[0].host {folder}: it does not exist" in message
    assert any(each["field"] == "mounts[0].host" for each in oak.home.drift("fir"))
    away.rename(folder)
    oak.home.look_again()
    oak.home.ready("fir")
    assert oak.sh("cat /src/which", "fir").stdout == b"second\n"
    oak.delete("fir")


def test_directory_that_another_guest_can_write_is_refused(oak: Shares) -> None:
    inner = owned(oak.rw / "inner", 0o755)
    holding = owned(oak.rw.parent / "holding", 0o755)
    link = holding / "link"
    link.symlink_to(oak.rw / "inner")
    for number, host in enumerate((oak.rw, inner, link)):
        name = f"gum{number}"
        oak.home.put(name, boxfile((host, "/src", "ro")))
        asked = partial(oak.home.condition, name, "Ready")
        until(partial(_is, asked, ("False", "MountRefused")), 40, f"{host} is refused")
        assert not oak.home.vmms(name)
        oak.delete(name)


def _is(ask: Callable[[], object], wanted: object) -> bool:
    return ask() == wanted


def test_changed_boxfile_with_a_refused_mount_leaves_the_vm_as_it_was(oak: Shares) -> None:
    first, later = owned(oak.rw.parent / "first", 0o755), oak.rw.parent / "later"
    away = first.with_name("first-away")
    (first / "which").write_text("first\n")
    kept, changed = boxfile((first, "/src", "ro")), boxfile((later, "/src", "ro"))
    oak.home.put("nut", kept)
    oak.home.ready("nut")
    pid, refused = oak.home.pid("nut"), ("False", "MountRefused")
    oak.home.put("nut", changed.replace("ram_mib: 192", "ram_mib: 208"))
    until(lambda: oak.home.condition("nut", "Ready") == refused, 40, "MountRefused")
    assert f"{later}: it does not exist" in oak.home.box("describe", "nut").stdout.decode()
    # It is looked after as what it was started for, also by another controller.
    oak.home.stop(signal.SIGKILL)
    oak.home.without_pids_limit("nut")
    oak.home.start()
    until(lambda: oak.sh("cat /src/which", "nut").stdout == b"first\n", 60, "it is taken up")
    oak.home.mended("nut", "cgroup.pids")
    assert oak.home.condition("nut", "Ready") == refused and oak.home.pid("nut") == pid
    assert oak.home.condition("nut", "Confined")[0] == "True"
    oak.home.put("nut", kept)
    oak.home.ready("nut")
    assert oak.home.pid("nut") == pid
    # What it has may not be shared any more either: now it goes, whatever else is wanted.
    oak.home.put("nut", changed)
    until(lambda: oak.home.condition("nut", "Ready") == refused, 40, "MountRefused")
    first.rename(away)
    oak.home.look_again()
    until(lambda: not oak.home.vmms("nut"), 60, "its VM is gone")
    owned(later, 0o755)
    oak.home.look_again()
    oak.home.ready("nut")
    assert oak.sh("ls /src", "nut").stdout == b""
    oak.delete("nut")


def test_policy_is_asked_about_where_a_path_leads(oak: Shares) -> None:
    """The link lies below the allowed directory, what it leads to does not."""
    allowed = owned(oak.rw.parent / "allowed", 0o755)
    (allowed / "out").symlink_to(oak.ro)
    policy = oak.home.path / "policy.toml"
    policy.write_text(f'mount_prefixes = ["{allowed}", "{oak.rw}", "{oak.ro.parent}/ro2"]\n')
    try:
        oak.home.put("ivy", boxfile((allowed / "out", "/src", "ro")))
        wanted = ("False", "RefusedByPolicy")
        until(lambda: oak.home.condition("ivy", "Ready") == wanted, 40, "refused by policy")
        assert not oak.home.vmms("ivy")
        oak.home.put("ivy", boxfile((allowed, "/src", "ro")))
        oak.home.ready("ivy")
    finally:
        policy.unlink()
        oak.delete("ivy")
        oak.home.look_again()
        oak.home.ready("oak")


# -- crashes


def test_restarted_controller_adopts_the_helpers_with_their_vm(oak: Shares) -> None:
    before = oak.home.pid("oak"), sorted(helper_processes(oak.home))
    oak.home.stop(signal.SIGKILL)
    oak.home.start()
    oak.home.ready("oak")
    until(lambda: oak.sh("cat /mnt/ro/text").stdout == b"read me\n", 30, "it is up again")
    assert (oak.home.pid("oak"), sorted(helper_processes(oak.home))) == before


def test_controller_killed_between_helper_and_vmm_leaves_nothing(oak: Shares) -> None:
    home = oak.home
    others = helper_processes(home)
    # So many that the VMM is far away, however late the first of their helpers is seen.
    folders = [owned(oak.rw.parent / f"many{n}", 0o755) for n in range(16)]
    home.put("kea", boxfile(*((each, f"/src/{n}", "ro") for n, each in enumerate(folders))))
    new = until(lambda: helper_processes(home) - others, 30, "the first helper runs")
    home.stop(signal.SIGKILL)
    assert not home.vmms("kea"), "the controller was killed too late"
    home.start()
    home.ready("kea")
    served = {each["pid"] for each in oak.helpers("kea")}
    assert helper_processes(home) == others | served
    assert not new & served
    oak.delete("kea")
    until(lambda: helper_processes(home) == others, 10, "its helpers are gone")


# -- guests with a read-only root


def test_missing_mount_point_in_a_read_only_root_is_said(oak: Shares) -> None:
    oak.home.put("lac", boxfile((oak.ro, "/missing", "ro"), more="readonly: true\n"))

    def said() -> bool:
        shown = oak.home.box("describe", "lac").stdout.decode()
        words = ("mounts[0].guest", "Read-only file system", "fix: with readonly: true name a")
        return all(each in shown for each in words)

    until(said, READY, "the reason is shown")
    oak.home.put("lac", boxfile((oak.ro, "/tmp/src", "ro"), more="readonly: true\n"))
    oak.home.ready("lac")
    assert oak.sh("cat /tmp/src/text", "lac").stdout == b"read me\n"
    oak.delete("lac")


def test_as_many_mounts_as_a_boxfile_may_have_work_at_once(oak: Shares) -> None:
    folders = [owned(oak.rw.parent / f"all{n}", 0o755) for n in range(20)]
    for number, folder in enumerate(folders):
        (folder / "number").write_text(f"{number}\n")
    mounts = tuple((each, f"/src/{n}", "ro") for n, each in enumerate(folders))
    oak.home.put("may", boxfile(*mounts))
    oak.home.ready("may")
    found = oak.sh("for n in $(seq 0 19); do cat /src/$n/number; done", "may").stdout
    assert found.decode().split() == [str(number) for number in range(20)]
    begun = time.monotonic()
    oak.home.box("verify", "may")
    assert time.monotonic() - begun < 60
    oak.delete("may")
