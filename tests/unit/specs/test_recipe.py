"""The steps of a build and their keys."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.boxfile import Boxfile
from specs.guestscripts import BLUEPRINT, PACKAGES
from specs.recipe import Step, key, steps
from tests.unit.specs.strategies import recipes

FILES = [
    {"path": "/etc/motd", "content": "end\nuser\n"},
    {"path": "/opt/b", "content": "AP8K", "encoding": "b64", "owner": "ada:ada", "append": True},
    {"path": "/opt/none", "permissions": "4755"},
]


def box(**fields: Any) -> Boxfile:
    return Boxfile(name="fern", **fields)


def records(step: Step) -> tuple[list[str], bytes]:
    head, _, contents = step.stdin.partition(b"\nend\n")
    return head.decode().split("\n"), contents


def chain(box: Boxfile, base: str = "b" * 64) -> list[str]:
    found = [base]
    for step in steps(box):
        found.append(key(found[-1], step, box.env))
    return found[1:]


def test_a_boxfile_without_a_recipe_has_no_steps() -> None:
    assert steps(box()) == ()
    assert steps(box(pkgmgr="apt", env={"A": "x"}, blueprint={})) == ()


def test_steps_come_in_their_order_each_with_a_title() -> None:
    found = steps(
        box(
            run=["make\nmake install", "true"],
            packages=["zsh", "curl"],
            blueprint={"users": [{"name": "ada"}], "write_files": FILES, "runcmd": ["id", "pwd"]},
        )
    )
    assert [(step.kind, step.title) for step in found] == [
        ("packages", "packages: curl, zsh"),
        ("blueprint", "blueprint: user ada, /etc/motd, /opt/b, /opt/none"),
        ("run", "run: make\\x0amake install"),
        ("run", "run: true"),
        ("run", "runcmd: id\\x0apwd"),
    ]


def test_names_of_packages_are_arguments_and_no_part_of_the_script() -> None:
    (step,) = steps(box(packages=["b(c)", "a<2"], pkgmgr="dnf"))
    assert step.argv == ("/bin/sh", "-c", PACKAGES, "packages", "dnf", "a<2", "b(c)")
    assert step.stdin == b""
    assert steps(box(packages=["a"]))[0].argv[4] == ""


def test_lines_are_run_by_a_shell_that_stops_at_the_first_failure() -> None:
    found = steps(box(run=["a; b"], blueprint={"runcmd": ["x $A", ["y", "a b", "$A'"]]}))
    assert [step.argv for step in found] == [
        ("/bin/sh", "-e", "-c", "a; b"),
        ("/bin/sh", "-e", "-c", "x $A\ny 'a b' '$A'\"'\"''"),
    ]


def test_users_and_files_are_records_of_one_value_a_line_with_the_bytes_behind_them() -> None:
    user = {"name": "ada", "uid": 7, "gecos": "A L", "groups": ["wheel", "kvm"], "shell": "/bin/a"}
    plain = {"name": "eve", "system": True, "homedir": "/srv/e", "primary_group": "adm"}
    (step,) = steps(box(blueprint={"users": [user, plain], "write_files": FILES}))
    assert step.argv == ("/bin/sh", "-c", BLUEPRINT, "blueprint")
    assert records(step) == (
        ["user", "ada", "7", "A L", "", "wheel kvm", "", "/bin/a", "yes", "1000"]
        + ["user", "eve", "", "", "adm", "", "/srv/e", "", "no", "100"]
        + ["file", "/etc/motd", "", "", "no", "9", "12"]
        + ["file", "/opt/b", "ada:ada", "", "yes", "3", "3"]
        + ["file", "/opt/none", "", "4755", "no", "0", "0"],
        b"end\nuser\n\0\xff\n",
    )


def test_the_records_ask_for_what_the_scripts_know_and_in_that_number() -> None:
    """Nothing a Boxfile can hold makes a record of another length."""
    for function, count in (("add_user", 9), ("add_file", 6)):
        taken = BLUEPRINT.partition(f"{function}() {{\n    take ")[2].partition("\n")[0].split()
        assert len(taken) == count, function


@given(recipes())
def test_every_record_is_whole_and_every_byte_of_a_file_is_where_its_record_says(
    box: Boxfile,
) -> None:
    step = next((one for one in steps(box) if one.kind == "blueprint"), None)
    if step is None or box.blueprint is None:
        return
    lines = step.stdin.decode("latin-1").split("\n")
    at, written = 0, []
    while lines[at] != "end":
        size = {"user": 10, "file": 7}[lines[at]]
        if lines[at] == "file":
            length, rest = map(int, lines[at + 5 : at + 7])
            start = len(step.stdin) - rest
            written.append((lines[at + 1], step.stdin[start : start + length]))
        at += size
    wanted = [(f.path.encode().decode("latin-1"), f.decoded()) for f in box.blueprint.write_files]
    assert written == wanted


@given(recipes())
def test_what_a_step_says_can_be_given_to_a_program_and_shown(box: Boxfile) -> None:
    for step in steps(box):
        assert step.title.isprintable()
        for argument in step.argv:
            assert "\0" not in argument
            assert len(argument.encode()) < 128 * 1024  # MAX_ARG_STRLEN


def test_a_key_is_one_of_all_that_came_before() -> None:
    fields: dict[str, Any] = {"packages": ["a"], "run": ["x", "y"], "env": {"A": "1", "B": "2"}}
    before = chain(box(**fields))
    assert len({*before}) == 3
    assert all(len(one) == 64 and int(one, 16) >= 0 for one in before)
    assert chain(box(**fields | {"run": ["x", "z"]}))[:2] == before[:2]
    changed = (
        chain(box(**fields | {"run": ["z", "y"]}))[1:],
        chain(box(**fields | {"packages": ["b"]})),
        chain(box(**fields | {"pkgmgr": "apt"})),
        chain(box(**fields | {"env": {"A": "1", "B": "3"}})),
        chain(box(**fields | {"env": {"A": "1"}})),
        chain(box(**fields), base="c" * 64),
    )
    for found in changed:
        assert not {*found} & {*before}


def test_a_key_leaves_out_what_changes_nothing() -> None:
    one = box(packages=["a", "b", "a"], env={"A": "1", "B": "2"}, cpus=1, run=["x"])
    other = box(packages=["b", "a"], env={"B": "2", "A": "1"}, ram_mib=1024, run=["x"])
    assert chain(one) == chain(other)
    step = Step("run", "a title", ("/bin/x",))
    assert key("b", step, {}) == key("b", Step("run", "another", ("/bin/x",)), {})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Step("run", "", ("a", "b")), Step("run", "", ("ab",))),
        (Step("run", "", ("a",), b"b"), Step("run", "", ("a", "b"))),
        (Step("run", "", ("a",), b"\0"), Step("run", "", ("a",), b"")),
    ],
)
def test_what_moves_from_one_part_to_another_is_another_key(one: Step, other: Step) -> None:
    assert key("b", one, {}) != key("b", other, {})


def test_variables_that_look_like_each_other_are_different_keys() -> None:
    step = Step("run", "", ("a",))
    environments: tuple[dict[str, str], ...] = (
        {},
        {"A": ""},
        {"A": "B=1"},
        {"A": "", "B": "1"},
        {'A","B': "1"},
    )
    assert len({key("b", step, env) for env in environments}) == len(environments)


@given(st.lists(st.from_regex(r"[a-z0-9]{2,9}", fullmatch=True), min_size=1, max_size=8), st.data())
def test_any_order_of_the_same_packages_is_one_key(names: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(names))
    assert chain(box(packages=names)) == chain(box(packages=shuffled))


@pytest.mark.parametrize("script", [PACKAGES, BLUEPRINT])
def test_the_scripts_pass_shellcheck_as_posix_sh(script: str) -> None:
    # Variables come from `read` by name, which shellcheck cannot follow.
    done = subprocess.run(
        ["shellcheck", "--shell=sh", "--exclude=SC2154,SC2229", "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", [PACKAGES, BLUEPRINT])
@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "sh"]])
def test_every_shell_can_read_the_scripts(shell: list[str], script: str) -> None:
    subprocess.run([*shell, "-n", "-c", script], check=True, timeout=60)
