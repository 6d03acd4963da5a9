"""Which controllers a host has follows from the text of its mount table alone."""

from __future__ import annotations

import pytest

from reconcilers.confinement.cgrouptree import CgroupTree, Mounted, tree_from
from specs.errors import ConfinementError


def v1(controllers: str, folder: str = "") -> str:
    where = folder or f"/sys/fs/cgroup/{controllers}"
    return f"35 31 0:32 / {where} rw,relatime shared:9 - cgroup cgroup rw,{controllers}\n"


V2 = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID_V2 = V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
OTHERS = "22 27 0:21 / /proc rw - proc proc rw\n27 1 254:0 / / rw - ext4 /dev/vda rw\n"


def test_legacy_host_has_each_controller_where_it_is_mounted() -> None:
    tree = tree_from(OTHERS + v1("memory") + v1("pids") + v1("cpu,cpuacct") + v1("freezer"), "")
    assert tree.missing == ()
    assert tree.controllers["cpu"] == Mounted(1, "/sys/fs/cgroup/cpu,cpuacct")
    assert tree.folders()[0] == "/sys/fs/cgroup/memory"
    assert len(tree.folders()) == 4


def test_unified_host_has_all_in_one_folder_and_needs_no_freezer() -> None:
    tree = tree_from(OTHERS + V2, "cpuset cpu io memory hugetlb pids rdma")
    assert tree.missing == ()
    assert tree.folders() == ("/sys/fs/cgroup",)
    assert tree.controllers["memory"] == Mounted(2, "/sys/fs/cgroup")


def test_hybrid_host_uses_each_controller_where_it_is_found() -> None:
    text = v1("memory") + v1("freezer") + HYBRID_V2
    tree = tree_from(text, "cpu pids")
    assert tree.missing == ()
    assert tree.controllers["memory"].version == 1
    assert tree.controllers["pids"] == Mounted(2, "/sys/fs/cgroup/unified")


@pytest.mark.parametrize("lacking", ["memory", "pids", "cpu"])
def test_controller_that_is_not_delegated_is_named(lacking: str) -> None:
    offered = " ".join({"memory", "pids", "cpu", "io"} - {lacking})
    tree = tree_from(V2, offered)
    assert tree.missing == (lacking,)
    with pytest.raises(ConfinementError, match=f"controller {lacking} ") as caught:
        tree.check()
    assert caught.value.layer == "cgroup"
    assert "cgroup.controllers" in caught.value.fix


def test_a_controller_that_a_users_systemd_was_not_given_is_asked_of_the_hosts() -> None:
    scope = "/sys/fs/cgroup/user.slice/user@1000.service/app.slice/box.scope"
    tree = CgroupTree({name: Mounted(2, "/sys/fs/cgroup") for name in ("memory", "pids")}, scope)
    with pytest.raises(ConfinementError, match="controller cpu ") as caught:
        tree.check()
    assert "drop-in of user@.service" in caught.value.fix


def test_legacy_host_without_a_freezer_is_refused() -> None:
    tree = tree_from(v1("memory") + v1("pids") + v1("cpu"), "")
    assert tree.missing == ("freezer",)


def test_host_without_cgroups_lacks_every_one() -> None:
    assert tree_from(OTHERS, "").missing == ("memory", "pids", "cpu")


def test_mount_point_with_a_space_is_decoded() -> None:
    tree = tree_from(v1("pids", folder="/mnt/my\\040groups"), "")
    assert tree.controllers["pids"].folder == "/mnt/my groups"


@pytest.mark.parametrize("line", ["", "garbage", "1 2 3 - cgroup", " - cgroup2 cgroup2 rw"])
def test_line_that_is_no_mount_is_passed_over(line: str) -> None:
    assert tree_from(line + "\n" + v1("pids"), "").controllers.keys() == {"pids"}
