"""What `packages`, `run` and `blueprint` may say, and where a mistake is reported."""

from __future__ import annotations

import pytest

from specs.blueprint import SCRIPT_MAX
from tests.unit.specs.helpers import accepted, only_problem, place

NAMES = ["python3", "g++", "libc6:i386", "curl=7.88.1-10+deb12u5", "git/bookworm-backports"]
NAMES += ["py3-pip~=23.1", "so:libssl.so.3", "@development-tools", "perl(Foo::Bar)", "0ad", "a>1.2"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_apk_apt_and_dnf_know_are_packages(name: str) -> None:
    assert accepted(f'packages: ["{name}"]').packages == (name,)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("--root=/x", "for an option"),
        ("-y", "for an option"),
        ("curl-", "to remove"),
        ("http://pkg.example/curl.rpm", "for a file"),
        ("https://pkg.example/curl", "for a file"),
        ("pool/curl.deb", "for a file"),
        ("curl git", "not the name of a package"),
        ("a;reboot", "not the name of a package"),
        ("$(reboot)", "not the name of a package"),
        ("`reboot`", "not the name of a package"),
        ("a|b", "not the name of a package"),
        ("a&", "not the name of a package"),
        ("lib*", "not the name of a package"),
        ("~nvim", "not the name of a package"),
        ("?essential", "not the name of a package"),
        ("/tmp/x.deb", "not the name of a package"),
        ("./x.deb", "not the name of a package"),
        ("!curl", "not the name of a package"),
        ("a\\nb", "not the name of a package"),
        ("a\\u200bb", "not the name of a package"),
        ("\\u0430pt", "not the name of a package"),
        ("", "empty"),
        ("x" * 201, "too long"),
    ],
)
def test_what_a_package_manager_or_shell_would_read_otherwise_is_refused(
    written: str, words: str
) -> None:
    problem = only_problem(f'cpus: 2\npackages:\n  - git\n  - "{written}"\n')
    assert words in problem.message
    assert (*place(problem), problem.field) == (4, 5, "packages[1]")
    assert problem.fix


@pytest.mark.parametrize(
    ("entry", "field", "words"),
    [
        ("users: [{name: root:x}]", "users[0].name", "cannot be the name of a user"),
        ("users: [{name: -r}]", "users[0].name", "cannot be the name of a user"),
        ('users: [{name: "a\\nb"}]', "users[0].name", "cannot be the name of a user"),
        ("users: [{name: Ada}]", "users[0].name", "cannot be the name of a user"),
        ("users: [{name: ada, groups: [a b]}]", "users[0].groups[0]", "cannot be the name"),
        ("users: [{name: ada, groups: wheel}]", "users[0].groups", "must be a list"),
        ("users: [{name: ada, uid: 0}]", "users[0].uid", "too small"),
        ("users: [{name: ada, uid: 4294967294}]", "users[0].uid", "too large"),
        ('users: [{name: ada, gecos: "a:b"}]', "users[0].gecos", "no room for a colon"),
        ('users: [{name: ada, gecos: "a\\nb"}]', "users[0].gecos", "control characters"),
        ("users: [{name: ada, homedir: home}]", "users[0].homedir", "absolute path"),
        ("users: [{name: ada, shell: '/bin/a:b'}]", "users[0].shell", "no room for a colon"),
        ("users: [{name: ada, sudo: ALL}]", "users[0].sudo", "unknown field"),
        ("users: [{name: ada}, {name: ada}]", "users", "ada is there twice"),
        ("users: [{name: a, uid: 5}, {name: b, uid: 5}]", "users", "two users have uid 5"),
        ("users: [default]", "users[0]", "must be a map"),
        ("write_files: [{path: etc/x}]", "write_files[0].path", "absolute path"),
        ("write_files: [{path: /etc/../x}]", "write_files[0].path", "shortest form"),
        ("write_files: [{path: //etc/x}]", "write_files[0].path", "shortest form"),
        ("write_files: [{path: /etc/x/}]", "write_files[0].path", "shortest form"),
        ("write_files: [{path: /}]", "write_files[0].path", "shortest form"),
        ('write_files: [{path: "/a\\nb"}]', "write_files[0].path", "control characters"),
        ("write_files: [{path: /run/x}]", "write_files[0].path", "not part of an image"),
        ("write_files: [{path: /data/x}]", "write_files[0].path", "not part of an image"),
        ("write_files: [{path: /etc/resolv.conf}]", "write_files[0].path", "writes this file"),
        (f"write_files: [{{path: /{'x' * 256}}}]", "write_files[0].path", "longer than 255"),
        ("write_files: [{path: /x, owner: -R}]", "write_files[0].owner", "not an owner"),
        ("write_files: [{path: /x, owner: 'a:'}]", "write_files[0].owner", "not an owner"),
        ("write_files: [{path: /x, owner: 'a b'}]", "write_files[0].owner", "not an owner"),
        ("write_files: [{path: /x, permissions: 0644}]", "write_files[0].permissions", "octal"),
        ("write_files: [{path: /x, permissions: '0888'}]", "write_files[0].permissions", "a mode"),
        ("write_files: [{path: /x, permissions: u+s}]", "write_files[0].permissions", "a mode"),
        ("write_files: [{path: /x, permissions: '77777'}]", "write_files[0].permissions", "a mode"),
        ("write_files: [{path: /x, content: 1}]", "write_files[0].content", "must be text"),
        ('write_files: [{path: /x, content: "a\\0"}]', "write_files[0].content", "NUL"),
        ("write_files: [{path: /x, encoding: gzip}]", "write_files[0].encoding", "not one of"),
        ("write_files: [{path: /x, content: a, encoding: b64}]", "write_files[0]", "not base64"),
        ("runcmd: [{a: b}]", "runcmd[0]", "must be text"),
        ("runcmd: [1]", "runcmd[0]", "must be text"),
        ("runcmd: [[]]", "runcmd[0]", "too few"),
        ("runcmd: [[a, 1]]", "runcmd[0][1]", "must be text"),
        ("packages: [curl]", "packages", "unknown field"),
    ],
)
def test_a_mistake_in_a_blueprint_has_its_place_and_a_fix(
    entry: str, field: str, words: str
) -> None:
    problem = only_problem(f"blueprint:\n  {entry}\n")
    assert words in problem.message
    assert problem.field == f"blueprint.{field}"
    assert problem.line == 2
    assert problem.fix


def test_the_word_that_other_tools_have_for_permissions_leads_to_them() -> None:
    problem = only_problem("blueprint: {write_files: [{path: /x, mode: '0644'}]}")
    assert (problem.message, problem.fix) == ("unknown field", "did you mean permissions?")


def test_a_command_that_no_program_could_be_given_is_refused() -> None:
    long = "x" * (SCRIPT_MAX + 1)
    assert only_problem(f"run: [{long}]").field == "run[0]"
    half = "x" * (SCRIPT_MAX // 2 + 1)
    assert only_problem(f"blueprint: {{runcmd: [{half}, {half}]}}").field == "blueprint.runcmd"
    assert only_problem("run: ['']").message == "the text is empty"


def test_content_is_kept_to_the_byte() -> None:
    text = 'blueprint: {write_files: [{path: /x, content: "\\ta\\r\\n é "}]}'
    blueprint = accepted(text).blueprint
    assert blueprint
    assert blueprint.write_files[0].decoded() == b"\ta\r\n \xc3\xa9 "


def test_base64_may_be_broken_into_lines() -> None:
    blueprint = accepted(
        "blueprint:\n  write_files:\n    - path: /x\n      encoding: base64\n"
        "      content: |\n        AAEC\n        /w==\n"
    ).blueprint
    assert blueprint
    assert blueprint.write_files[0].decoded() == b"\0\1\2\xff"
