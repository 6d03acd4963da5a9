"""`box new`, `schema`, `version` and `completion`: what a user meets first."""

from __future__ import annotations

import json
import platform
from argparse import Namespace
from importlib import metadata
from pathlib import Path

from controller.cli import examples, output
from controller.cli.place import controller_runs, existing, home
from specs.errors import BoxError, HostError, UsageError
from specs.names import check_name

DISTRIBUTION = "box-controller"

TEMPLATE = """\
# One sandbox. Every field: box schema. What a change would do: box diff -f {file}
name: {name}
base: builtin:busybox
cpus: 2
ram_mib: 512

# strict gives the VMM a host user of its own and refuses software emulation unless it is written.
{accel}

# The only thing that persists, at /data in the guest.
data:
  size_mib: 1024
  on_delete: keep
"""


WITH_KVM = """\
# Where hardware virtualization does not work (box doctor says), this line is for trying things:
# accel: tcg"""
WITHOUT_KVM = """\
# Written because hardware virtualization does not work on this host
# ({why}).
# Emulation is for trying and testing, not a wall: remove the line on a host with KVM.
accel: tcg"""


def new(chosen: Namespace) -> int:
    if chosen.list:
        output.print_pairs(examples.about())
        return 0
    if chosen.name is None:
        raise UsageError("no name was given", fix="box new NAME; box new --list shows the examples")
    name = check_name(chosen.name)
    if chosen.example:
        text, suffix = examples.text_of(chosen.example, name, _accel())
    else:
        path = f"{name}.box.yaml"
        text, suffix = TEMPLATE.format(name=name, file=path, accel=_accel()), ".box.yaml"
    path = name + suffix
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            "there is already a file of that name",
            where=path,
            fix=f"box apply -f {path} uses it; another name, or another folder, begins a new one",
        ) from None
    print(f"wrote {path}. Next: box apply -f {path} --wait")
    return 0


def _accel() -> str:
    from controller.cli.kvm import obstacle

    why = obstacle(home() / "kernels")
    return WITHOUT_KVM.format(why=output.safe(why)) if why else WITH_KVM


def schema(chosen: Namespace) -> int:
    from specs.parse import boxfile_schema

    text = json.dumps(boxfile_schema(), indent=2) + "\n"
    if chosen.output is None or chosen.output == "-":
        print(text, end="")
        return 0
    try:
        Path(chosen.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise HostError(
            f"the schema cannot be written: {error.strerror}",
            where=output.safe(chosen.output),
            fix="name a file in a folder that exists and that you may write, or leave --output out",
        ) from error
    print(
        f"wrote {output.safe(chosen.output)}. In a Boxfile, for editors with a YAML server:\n"
        f"# yaml-language-server: $schema={output.safe(Path(chosen.output).absolute())}"
    )
    return 0


def version(chosen: Namespace) -> int:
    facts = {
        "box": _own_version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "controller": _controller_version(),
    }
    if chosen.form == "json":
        output.print_data(facts, "json")
    else:
        output.print_pairs(facts.items())
    return 0


def _own_version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "not installed (running from a source tree)"


def _controller_version() -> str:
    from controller.cli.client import call

    try:
        layout = existing()
        if layout is None or not controller_runs(layout):
            return "not running"
        answer = call(layout, "GET", "/v1/version")
    except BoxError as problem:
        return f"does not answer: {problem.message}"
    return f"{answer.get('box', '?')}, pid {answer.get('pid', '?')}, up"


def completion(chosen: Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["box"], shell=chosen.shell), end="")
    return 0
