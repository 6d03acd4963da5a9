"""`box doctor` names what a host lacks, with the fix, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.home import ensure_home
from tests.unit.cli.support import BARE, box, environment, text

AS_NOBODY = """
import os, sys
import controller.cli.parser  # while its files can be read
import controller.cli.doctor, controller.cli.get, controller.home
from controller.cli.main import main
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.argv = ["box", sys.argv[1]]
sys.exit(main())
"""


def test_doctor_names_every_requirement_with_a_fix_for_each_failure(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('qemu = "/no/such/qemu"\nkernel = "/no/such/kernel"\n')
    done = box(home, "doctor", "-o", "json")
    checks = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert checks["qemu"]["state"] == "fail"
    assert "dev setup" in checks["qemu"]["fix"]
    assert checks["guest kernel"]["state"] == "fail"
    assert checks["controller"]["state"] == "warn"
    for one in checks.values():
        assert one["found"], one["name"]
        assert one["state"] == "ok" or one["fix"] or "could not be checked" in one["found"], one
        assert one["needed_for"], f"{one['name']}: what is it for?"
    wanted = (
        "kvm cgroups identities namespaces seccomp landlock virtiofsd passt nftables forwarding"
    )
    wanted += " guest_kernel disk_space socket_paths new_privileges qemu host_kernel tap_devices"
    named = {name.replace(" ", "_") for name in checks} | {"kvm"}
    assert set(wanted.split()) <= named and "hardware_virtualization" in named
    assert not (home / "instance").exists(), "doctor changes nothing"


def checks_after(script: str, place: Path) -> dict[str, dict[str, str]]:
    """What doctor says, by name, in a process that has run `script` first."""
    become = (
        "import os, sys\n"
        "argv = [sys.executable, '-m', 'controller.cli.main', 'doctor', '-o', 'json']\n"
        "os.execv(argv[0], argv)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script + become], capture_output=True,
        env=environment(place / "home"), timeout=60,
    )  # fmt: skip
    return {one["name"]: one for one in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize("answer", ["ENOSYS", "EOPNOTSUPP"])
def test_doctor_warns_of_a_kernel_without_landlock(tmp_path: Path, answer: str) -> None:
    script = (
        "import errno, pyseccomp\n"
        "rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)\n"
        f"refusal = pyseccomp.ERRNO(errno.{answer})\n"
        "rules.add_rule(refusal, 'landlock_create_ruleset')\n"
        "rules.load()\n"
    )
    checks = checks_after(script, tmp_path)
    assert checks["landlock"]["state"] == "warn", checks["landlock"]
    assert "lsm=" in checks["landlock"]["fix"]


@pytest.mark.needs_root
def test_doctor_sees_no_new_privileges(tmp_path: Path) -> None:
    script = (
        "import ctypes\n"
        "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\n"  # PR_SET_NO_NEW_PRIVS
    )
    checks = checks_after(script, tmp_path)
    assert "NoNewPrivs is set" in checks["new privileges"]["found"]


@pytest.mark.needs_root
def test_doctor_sees_a_limit_of_open_files_that_is_too_low_for_helpers(tmp_path: Path) -> None:
    script = (
        "import ctypes, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))\n"  # Linux's own
        "ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)\n"  # PR_CAPBSET_DROP CAP_SYS_RESOURCE
    )
    found = checks_after(script, tmp_path)["open files"]
    assert (found["state"], found["found"]) == ("warn", "at most 4096, 16384 needed")
    assert "ulimit -Hn" in found["fix"]


@pytest.mark.needs_root
def test_doctor_leaves_no_trace_of_what_it_tried(tmp_path: Path) -> None:
    def traces() -> list[str]:
        top = Path("/sys/fs/cgroup")
        found = [*top.glob("*/box/*/doctor"), *top.glob("box/*/doctor")]
        return sorted(str(path) for path in found)

    before = traces()
    checks = checks_of(tmp_path / "home")
    assert "limits hold when read back" in checks["cgroups"]["found"]
    assert checks["nftables"]["state"] == "ok"
    assert [each for each in traces() if each not in before] == []


def checks_of(home: Path) -> dict[str, dict[str, str]]:
    done = box(home, "doctor", "-o", "json")
    return {one["name"]: one for one in json.loads(done.stdout)["checks"]}


def test_doctor_says_of_a_home_whether_it_can_be_one(tmp_path: Path) -> None:
    assert "does not exist yet" in checks_of(tmp_path / "home")["home folder"]["found"]
    (tmp_path / "home").mkdir()
    assert "was not used yet" in checks_of(tmp_path / "home")["home folder"]["found"]
    (tmp_path / "file").touch()
    found = checks_of(tmp_path / "file")["home folder"]
    assert (found["state"], "not a folder" in found["found"]) == ("fail", True)


def test_doctor_reports_mistakes_in_settings_beside_all_other_checks(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text("qeum = 1\n")
    (home / "policy.toml").write_text("max_cpus = 2\nmax_ram = 3\n")
    found = checks_of(home)
    assert found["config file"]["state"] == found["policy file"]["state"] == "fail"
    assert f"{home}/config.toml:1:1: qeum" in found["config file"]["found"]
    assert found["config file"]["fix"] == "did you mean qemu?"
    assert f"{home}/policy.toml:2:1: max_ram" in found["policy file"]["found"]
    assert found["qemu"]["found"]
    (home / "policy.toml").write_text("max_cpus = 2\n")
    assert checks_of(home)["policy file"]["found"].endswith("policy.toml: max_cpus = 2")


@pytest.mark.needs_root
def test_doctor_warns_of_boxfiles_that_others_may_write(tmp_path: Path) -> None:
    layout = ensure_home(tmp_path / "home")
    file = layout.boxes / "fern.yaml"
    file.write_text("cpus: 1\n")
    file.chmod(0o644)
    assert checks_of(layout.home)["watched folder"]["state"] == "ok"
    file.chmod(0o664)
    assert checks_of(layout.home)["watched folder"]["state"] == "warn"
    file.chmod(0o600)
    os.chown(file, 1000, 0)
    found = checks_of(layout.home)["watched folder"]
    assert (found["state"], str(file) in found["found"]) == ("warn", True)
    layout.runtime.rmdir()


@pytest.mark.needs_root
def test_whose_home_it_is_is_told_to_another_user(tmp_path: Path) -> None:
    layout = ensure_home(tmp_path / "home")
    for verb in ("doctor", "get"):
        done = subprocess.run(
            [BARE, "-c", AS_NOBODY, verb], capture_output=True,
            env=environment(layout.home, PYTHONPATH=":".join(sys.path)), timeout=100,
        )  # fmt: skip
        assert "belongs to somebody else" in text(done), verb
        assert done.returncode == 1
        assert b"PermissionError" not in done.stdout + done.stderr
    layout.runtime.rmdir()
