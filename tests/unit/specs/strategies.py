"""Generators of Boxfiles that are valid and use only what is built."""

from __future__ import annotations

import base64
import string
from typing import Any

from hypothesis import strategies as st

from specs.boxfile import DATA_MIB_MAX, RAM_MIB_MAX, TIMEOUT_MAX, Boxfile, Data

_NAME_ENDS = string.ascii_lowercase + string.digits

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)

# Words that YAML readers are known to turn into something else, among all other text.
trap_words = st.sampled_from(
    ["no", "NO", "y", "on", "~", "null", "22:22", "0755", "1_000", "1.10", "1e3", ".inf", "0x1F"]
    + ["", " ", "- a", "a: b", "# c", "{", "*a", "&a", "!!str", "<<", "'", '"', "\\", "---", "..."]
    + ["\ufeff", "\u00a0x", "\u2028", "\x85", "\x1b[31m", "a\nb\n", "\t", "\U0001f600", "é", "="]
)
texts = st.one_of(
    trap_words,
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
)
lines = texts.filter(str.isprintable)
variables = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="="),
    min_size=1,
    max_size=20,
)
label_keys = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,20}", fullmatch=True)


_accounts = st.from_regex(r"[a-z_][a-z0-9_-]{0,8}", fullmatch=True)
_paths = st.from_regex(r"/(etc|opt|home)(/[A-Za-z0-9 $'\"*;é-]{1,9}){1,3}", fullmatch=True)
_files = st.one_of(
    st.builds(
        lambda path, content, append: {"path": path, "content": content, "append": append},
        _paths,
        texts,
        st.booleans(),
    ),
    st.builds(
        lambda path, content, mode: {
            "path": path,
            "content": base64.b64encode(content).decode(),
            "encoding": "b64",
            "permissions": f"{mode:04o}",
        },
        _paths,
        st.binary(max_size=60),
        st.integers(0, 0o7777),
    ),
)
_blueprints = st.fixed_dictionaries(
    {},
    optional={
        "users": st.lists(
            st.fixed_dictionaries(
                {"name": _accounts, "groups": st.lists(_accounts, max_size=3)},
                optional={"gecos": lines.filter(lambda text: ":" not in text)},
            ),
            max_size=3,
            unique_by=lambda user: user["name"],
        ),
        "write_files": st.lists(_files, max_size=4),
        "runcmd": st.lists(st.one_of(texts, st.lists(texts, min_size=1)), max_size=3),
    },
)
_recipe: dict[str, st.SearchStrategy[Any]] = {
    "packages": st.lists(st.from_regex(r"[a-z0-9][a-z0-9+.]{1,9}", fullmatch=True), max_size=4),
    "run": st.lists(texts.filter(bool), max_size=3),
    "pkgmgr": st.sampled_from([None, "apk", "apt", "dnf"]),
    "blueprint": st.none() | _blueprints,
}


def boxfiles() -> st.SearchStrategy[Boxfile]:
    """Any Boxfile that this version accepts."""
    return st.builds(
        Boxfile,
        name=names,
        state=st.sampled_from(["running", "stopped"]),
        backend=st.sampled_from([None, "qemu"]),
        accel=st.sampled_from(["auto", "kvm", "tcg"]),
        isolation=st.sampled_from(["strict", "standard"]),
        cpus=st.integers(1, 16),
        ram_mib=st.integers(128, RAM_MIB_MAX),
        readonly=st.booleans(),
        timeout_seconds=st.integers(0, TIMEOUT_MAX),
        env=st.dictionaries(variables, texts, max_size=4),
        labels=st.dictionaries(label_keys, lines, max_size=4),
        data=st.builds(
            Data,
            size_mib=st.integers(16, DATA_MIB_MAX),
            on_delete=st.sampled_from(["keep", "erase"]),
        ),
        restart=st.sampled_from(["always", "never"]),
        **_recipe,
    )


def recipes() -> st.SearchStrategy[Boxfile]:
    """Any Boxfile whose image is built."""
    environment = st.dictionaries(variables, texts, max_size=3)
    return st.builds(Boxfile, name=names, env=environment, **_recipe)
