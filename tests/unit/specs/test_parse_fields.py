"""Fields: every mistake at once, suggestions, names, what is not built yet."""

from __future__ import annotations

import hashlib

import pytest

from specs.boxfile import Boxfile
from specs.parse import parse_boxfile
from tests.unit.specs.helpers import accepted, only_problem, place, problems


def test_every_mistake_is_reported_at_once_in_the_order_of_the_file() -> None:
    text = "cpuz: 2\nram_mib: lots\nenv:\n  A: 1\nstate: runing\ndata:\n  size_mb: 5\n"
    found = problems(text)
    assert [(p.field, *place(p)) for p in found] == [
        ("cpuz", 1, 1),
        ("ram_mib", 2, 10),
        ("env.A", 4, 6),
        ("state", 5, 8),
        ("data.size_mb", 7, 3),
    ]


def test_problem_reads_as_file_line_column() -> None:
    assert str(only_problem("cpus: 99\n")).startswith("fern.yaml:1:7: cpus: 99 is too large; fix: ")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("cpuz", "cpus"),
        ("CPUs", "cpus"),
        ("ram_mb", "ram_mib"),
        ("memory", "ram_mib"),
        ("image", "base"),
        ("timeout", "timeout_seconds"),
        ("size_mib", "data.size_mib"),
        ("isolaton", "isolation"),
    ],
)
def test_misspelt_key_gets_a_suggestion(written: str, meant: str) -> None:
    assert only_problem(f"{written}: 2\n").fix == f"did you mean {meant}?"


def test_misspelt_value_gets_a_suggestion() -> None:
    assert only_problem("isolation: strickt\n").fix == "did you mean strict?"
    assert only_problem("backend: qmeu\n").fix == "did you mean qemu?"


def test_a_field_that_is_missing_is_named_with_the_one_beside_it() -> None:
    found = problems("mounts:\n- {source: /srv, target: /src}\n")
    assert [(p.field, *place(p)) for p in found if "required" in p.message] == [
        ("mounts[0].guest", 2, 3),
        ("mounts[0].host", 2, 3),
    ]


@pytest.mark.parametrize(
    ("text", "fields"),
    [("mounts: ['/srv:/src:ro']", "host, guest, mode"), ("data: 256", "size_mib, on_delete")],
)
def test_a_value_in_place_of_a_map_is_answered_with_the_fields(text: str, fields: str) -> None:
    assert only_problem(f"{text}\n").fix.endswith(f"the fields are {fields}")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("network: bridge\negress: [example.org:443]", "write the address of example.org"),
        ("network: bridge\negress: 192.0.2.7:443", 'write "- item" lines, or [item, item]'),
        ("mounts: [{host: /srv, guest: src}]", "write /src"),
        ("mounts: [{host: ../src, guest: /src}]", "write the whole path: "),
    ],
)
def test_what_a_field_cannot_be_has_its_own_fix(text: str, fix: str) -> None:
    assert only_problem(f"{text}\n").fix.startswith(fix)


def test_defaults_are_those_of_the_documentation() -> None:
    box = accepted("state: running\n")
    assert box == Boxfile(name="fern")
    assert (box.base, box.cpus, box.ram_mib, box.accel) == ("builtin:busybox", 2, 512, "auto")
    assert (box.isolation, box.network, box.restart) == ("strict", "none", "always")
    assert (box.data.size_mib, box.data.on_delete, box.timeout_seconds) == (1024, "keep", 0)
    assert (box.readonly, box.backend) == (False, None)


def test_toml_and_yaml_of_the_same_fields_are_equal() -> None:
    toml = 'cpus = 4\naccel = "tcg"\n[env]\nA = "x"\n[data]\nsize_mib = 2048\n'
    yaml = "cpus: 4\naccel: tcg\nenv: {A: x}\ndata: {size_mib: 2048}\n"
    assert accepted(toml, file="fern.box.toml") == accepted(yaml)


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [("cpus", 0, 17), ("ram_mib", 127, 10**12), ("timeout_seconds", -1, 10**10)],
)
def test_numbers_out_of_range_are_refused(field: str, low: int, high: int) -> None:
    assert "too small" in only_problem(f"{field}: {low}\n").message
    assert "too large" in only_problem(f"{field}: {high}\n").message


@pytest.mark.parametrize(
    "text",
    [
        "warm: 1",
        "warmup: [x]",
        "seccomp: /etc/x",
        "backend: firecracker",
    ],
)
def test_field_that_is_not_built_is_refused_and_never_ignored(text: str) -> None:
    problem = only_problem(text)
    assert "not supported yet" in problem.message
    assert problem.field == text.partition(":")[0]
    assert place(problem) == (1, 1)


@pytest.mark.parametrize(
    "text", ["warm: 0", "mounts: []", "run: []", "network: none", "backend: qemu", "pkgmgr: ~"]
)
def test_default_of_a_field_that_is_not_built_may_be_written(text: str) -> None:
    accepted(text)


def test_written_name_must_be_the_one_of_the_file() -> None:
    assert accepted("name: fern\n").name == "fern"
    assert place(only_problem("cpus: 2\nname: moss\n")) == (2, 7)


def test_text_without_a_file_name_needs_a_name() -> None:
    assert accepted("name: moss\n", name=None).name == "moss"
    assert only_problem("cpus: 2\n", name=None).field == "name"


@pytest.mark.parametrize("name", ["Fern", "-fern", "fern-", "a.b", "x" * 64, "..", "\u0430bc"])
def test_file_name_that_is_no_sandbox_name_is_a_mistake(name: str) -> None:
    problem = only_problem("cpus: 2\n", name=name)
    assert problem.field == "name"
    assert "file name" in problem.message


@pytest.mark.parametrize("name", ["A B", "A=B", '""', "'a b'"])
def test_environment_names_that_no_program_could_read_are_refused(name: str) -> None:
    assert only_problem(f"env:\n  {name}: x\n").line == 2


def test_nul_in_an_environment_value_is_refused() -> None:
    assert "NUL" in only_problem('env:\n  A: "x\\0y"\n').message


def test_many_mistakes_are_cut_with_a_count() -> None:
    found = problems("".join(f"x{n}: 1\n" for n in range(200)))
    assert len(found) == 51
    assert "150 more" in found[-1].message


def test_digest_is_of_the_bytes_whether_valid_or_not() -> None:
    for data in (b"cpus: 2\n", b"cpus: [\n"):
        parsed = parse_boxfile(data, file="fern.yaml", expected_name="fern")
        assert parsed.digest == hashlib.sha256(data).hexdigest()


def test_control_characters_in_the_file_name_are_not_echoed() -> None:
    parsed = parse_boxfile(b"", file="\x1b[31m.yaml", expected_name="fern")
    assert "\x1b" not in str(parsed.problems[0])


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("timeout_seconds: 5m", "in seconds that is 300"),
        ("timeout_seconds: 2 h", "in seconds that is 7200"),
        ("timeout_seconds: 4G", "write digits only, in seconds"),
        ("ram_mib: 4G", "in MiB that is 4096"),
        ("ram_mib: 5min", "write digits only, in MiB"),
        ("data: {size_mib: 2GiB}", "in MiB that is 2048"),
        ("cpus: 4m", "write digits only"),
    ],
)
def test_a_number_with_a_unit_is_given_back_in_the_unit_of_the_field(text: str, fix: str) -> None:
    assert only_problem(text + "\n").fix == fix


def test_no_fix_offers_what_is_refused() -> None:
    fix = only_problem("quux: 1\n").fix
    assert "ram_mib" in fix
    assert "seccomp" not in fix and "warmup" not in fix
    problem = only_problem("backend: podman\n")
    assert (problem.message, problem.fix) == ("podman is not supported yet", "write qemu")


@pytest.mark.parametrize("egress", ["none", "all", "[]", "['192.0.2.1:443']"])
def test_egress_of_no_network_is_a_mistake(egress: str) -> None:
    for network in ("", "network: none\n"):
        problem = only_problem(f"{network}egress: {egress}\n")
        assert problem.field == "egress" and "network: bridge" in problem.fix


def test_each_wrong_entry_of_egress_is_named_at_its_place() -> None:
    text = "network: bridge\negress:\n  - 192.0.2.1:443\n  - example.com:443\n  - 192.0.2.2\n"
    found = [(p.line, p.column, p.field) for p in problems(text)]
    assert found == [(4, 5, "egress[1]"), (5, 5, "egress[2]")]


def test_misspelt_word_of_egress_has_a_suggestion() -> None:
    problem = only_problem("network: bridge\negress: alll\n")
    assert (problem.line, problem.column, problem.fix) == (2, 9, "did you mean all?")
