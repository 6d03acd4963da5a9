"""A launcher that forgets a layer: readback, which shares no judgement with it, sees the gap.

The launcher is started with one entry taken out of ORDER. Three entries are left alone because
without them the host's own mounts would change.
"""

from __future__ import annotations

import pytest

from reconcilers.confinement import following, syscalls
from reconcilers.confinement.readback import read_vmm
from specs.errors import ConfinementError
from tests.vm.jailed import jail

pytestmark = pytest.mark.needs_root

SINCE_6_12 = pytest.mark.skipif(not syscalls.time_slice(0), reason="no time slices before 6.12")
FORGETFUL = (
    "import sys; sys.path += sys.argv[1:3];"
    "from reconcilers.confinement import launch;"
    "launch.ORDER = tuple(each for each in launch.ORDER if each[0] != {layer!r}); launch.main()"
)


@pytest.mark.parametrize(
    ("forgotten", "seen"),
    [
        ("session", "session"),
        ("pivot", "root"),
        ("rlimits", "rlimits"),
        pytest.param("scheduler", "scheduler", marks=SINCE_6_12),
        ("bounding set", "capabilities"),
        ("identity", "identity"),
    ],
)
def test_layer_the_launcher_forgot_is_read_back_as_a_difference(
    forgotten: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_BOOTSTRAP", FORGETFUL.format(layer=forgotten))
    with jail() as made:
        made.start_bare()
        assert made.launched is not None
        made.connect(3).recv(16)
        readings = read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)
        assert {each.layer for each in readings if not each.ok} == {seen}


@pytest.mark.parametrize(
    ("forgotten", "layer"),
    [
        ("cgroup", "first process"),
        ("binds", "landlock"),
        ("root", "pivot"),
        ("securebits", "securebits"),
        ("no_new_privs", "landlock"),
        ("landlock", "landlock"),
        ("seccomp", "securebits"),
    ],
)
def test_launch_that_cannot_hold_without_the_layer_starts_nothing(
    forgotten: str, layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_BOOTSTRAP", FORGETFUL.format(layer=forgotten))
    with jail() as made:
        with pytest.raises(ConfinementError) as caught:
            made.start_bare()
        assert caught.value.layer == layer
        assert made.group.procs() == []
