"""What goes to the launcher and what comes back, without the modules that would do it slowly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reconcilers.confinement import following
from reconcilers.confinement.document import Bind, Document, Share
from reconcilers.confinement.jsontext import written

WHOLE = Document(
    argv=("/usr/bin/true", "\udcff"),
    uid=1,
    gid=2,
    kvm=False,
    cgroup_procs=("/sys/fs/cgroup/box",),
    binds=(Bind(inside="/a", host="/b", descriptor=-1, executable=True),),
    descriptors=((0, 7),),
    rlimits=(("nofile", 1, 1 << 63),),
    seccomp="00",
    status=3,
    go=4,
    groups=None,
    shares=(Share(inside="/s", descriptor=9, writable=True, owner=(1, 2), shown=(3, 4)),),
)


def test_a_document_arrives_as_it_was_sent() -> None:
    arrived = Document.from_bytes(WHOLE.to_bytes())
    assert arrived.plain() == WHOLE.plain()
    assert arrived.shares[0].owner == (1, 2) and arrived.binds[0].executable
    assert arrived.netns == -1 and arrived.groups is None


@pytest.mark.parametrize("change", [{"uid": 1}, {"inside": "/a", "colour": "red"}])
def test_a_field_too_many_or_too_few_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="field"):
        Bind(**change)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -7, 1 << 70, "", 'a"b\\c', "\0\n\x7f\x9f", "ä€😀", "\ud800", "\udcff",
        [], {}, [1, ["x", {}]], ((1, "/a", "ro"),), {"ready": {"mounts": [(1, "/", "ro")]}},
    ],
)  # fmt: skip
def test_a_report_reads_as_what_json_would_write(value: object) -> None:
    assert json.loads(written(value)) == json.loads(json.dumps(value))


def test_a_report_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError):
        written({"a": 1.5})


def test_the_launcher_loads_none_of_what_is_slow_to_load() -> None:
    program = (
        "import sys; sys.path += sys.argv[1:3]; import reconcilers.confinement.launch; "
        "print(*sys.modules)"
    )
    packages = str(Path(following.__file__).parents[2])
    argv = [sys.executable, "-I", "-S", "-c", program, packages, following._site()]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert "reconcilers.confinement.jailrights" in loaded
    assert not {"json", "typing", "re", "dataclasses", "subprocess"} & set(loaded)
