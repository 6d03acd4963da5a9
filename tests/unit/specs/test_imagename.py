"""What `base` may name, and what is said of everything else."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specs.imagename import (
    Archive,
    BadImageName,
    Builtin,
    Registry,
    Rootfs,
    canonical,
    moves,
    parse_image,
)
from tests.unit.specs.helpers import only_problem

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("alpine", "docker.io/library/alpine:latest"),
        ("alpine:3.20", "docker.io/library/alpine:3.20"),
        ("team/tool", "docker.io/team/tool:latest"),
        ("docker.io/alpine", "docker.io/library/alpine:latest"),
        ("index.docker.io/library/alpine", "docker.io/library/alpine:latest"),
        ("ghcr.io/team/tool:1.4", "ghcr.io/team/tool:1.4"),
        ("localhost/tool", "localhost/tool:latest"),
        ("registry:5000/tool", "registry:5000/tool:latest"),
        ("127.0.0.1:5000/a/b/c:x", "127.0.0.1:5000/a/b/c:x"),
        ("Registry/tool", "Registry/tool:latest"),
        ("registry:5000", "docker.io/library/registry:5000"),  # a tag: there is no slash
        (f"alpine@{DIGEST}", f"docker.io/library/alpine@{DIGEST}"),
        (f"alpine:3@{DIGEST}", f"docker.io/library/alpine:3@{DIGEST}"),
        ("a__b.c--d", "docker.io/library/a__b.c--d:latest"),
        ("registry.invalid/nope:0", "registry.invalid/nope:0"),
        ("oci-archive:/srv/a.tar", "oci-archive:/srv/a.tar"),
        ("oci-archive:~/a.tar:v1", "oci-archive:~/a.tar:v1"),
        ("rootfs:/srv/root/", "rootfs:/srv/root"),
        ("rootfs:~/a b:c", "rootfs:~/a b:c"),
        ("builtin:busybox", "builtin:busybox"),
    ],
)
def test_a_name_in_full(written: str, meant: str) -> None:
    assert canonical(written) == meant
    assert parse_image(meant) == parse_image(written)


def test_the_kinds_of_names() -> None:
    assert parse_image("builtin:busybox") == Builtin("busybox")
    assert parse_image("a/b:c") == Registry("docker.io", "a/b", "c")
    assert parse_image(f"h.io/b:c@{DIGEST}") == Registry("h.io", "b", "c", DIGEST)
    assert parse_image("oci-archive:/a:b") == Archive("/a", "b")
    assert parse_image("rootfs:/a") == Rootfs("/a")
    assert Registry("h.io", "b", "c", DIGEST).repository_name == "h.io/b"


@pytest.mark.parametrize(
    ("written", "message", "fix"),
    [
        ("Alpine", "has capitals", "write alpine"),
        ("ghcr.io/Team/tool:X", "has capitals", "write ghcr.io/team/tool:X"),
        ("alpine:", "the tag is missing", "leave out the colon"),
        ("alpine:-x", "is not a tag", "128 letters"),
        ("alpine:" + "x" * 129, "is not a tag", "128 letters"),
        ("alpine@sha256:12", "is not a digest", "64 digits"),
        (f"alpine@md5:{HEX}", "is not a digest", "sha256:"),
        ("docker://alpine", "docker:// is not part", "write alpine"),
        ("https://ghcr.io/a/b", "https:// is not part", "write ghcr.io/a/b"),
        ("docker-archive:/a.tar", "is not supported", "oci-archive:PATH"),
        ("./root", "a path is not", "rootfs:./root"),
        ("/srv/a.tar", "a path is not", "rootfs:/srv/a.tar"),
        ("alpine/", "is not the name", "debian:12"),
        ("a//b", "is not the name", "debian:12"),
        ("al pine", "is not the name", "debian:12"),
        ("ghcr.io/", "names no image", "HOST/NAME"),
        ("-x.io/a", "is not a registry", "HOST:PORT/NAME"),
        ("h.io:99999/a", "is not a registry", "HOST:PORT/NAME"),
        ("[::1]:5000/a", "is not a registry", "HOST:PORT/NAME"),
        ("a" * 256, "too long", "255"),
        ("builtin:alpine", 'there is no "builtin:alpine"', "builtin:busybox"),
        ("rootfs:", "is not an absolute path", "rootfs:/"),
        ("rootfs:srv/root", "is not an absolute path", "rootfs:/"),
        ("rootfs:~other/x", "is not an absolute path", "rootfs:~/"),
        ("rootfs:/srv/../etc", "must not contain ..", "where it leads"),
        ("rootfs:/", "the whole host", "name the folder"),
        ("rootfs:/srv//x", "shortest form", "write rootfs:/srv/x"),
        ("oci-archive:/a:b:c", "cannot hold a colon", "oci-archive:/a:TAG"),
        ("oci-archive:a.tar", "is not an absolute path", "oci-archive:/"),
    ],
)
def test_a_mistake_says_what_to_write(written: str, message: str, fix: str) -> None:
    with pytest.raises(BadImageName) as caught:
        parse_image(written)
    assert message in str(caught.value)
    assert fix in caught.value.fix


def test_a_mistake_in_a_boxfile_has_its_place_and_fix() -> None:
    problem = only_problem("cpus: 1\nbase: Debian:12\n")
    assert (problem.line, problem.column, problem.field) == (2, 7, "base")
    assert problem.fix == "write debian:12"


_components = st.from_regex(r"[a-z0-9]+([._-][a-z0-9]+){0,2}", fullmatch=True)
_registries = st.sampled_from(["", "localhost/", "h.io/", "127.0.0.1:5000/", "docker.io/", "Host/"])
_tags = st.one_of(st.just(""), st.from_regex(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True))


@given(_registries, st.lists(_components, min_size=1, max_size=3), _tags, st.booleans())
def test_a_name_in_full_means_the_same(
    registry: str, parts: list[str], tag: str, pinned: bool
) -> None:
    assume(registry or len(parts) == 1 or "." not in parts[0])  # that one would be a registry
    written = registry + "/".join(parts) + tag + (f"@{DIGEST}" if pinned else "")
    found = parse_image(written)
    assert isinstance(found, Registry)
    assert parse_image(str(found)) == found
    assert found.digest == (DIGEST if pinned else "")
    assert found.tag == (tag[1:] or ("" if pinned else "latest"))
    assert str(found).count("/") >= 1 + (found.host == "docker.io")


@given(st.text(max_size=60) | st.text("ab/.:@~-_A ", max_size=30))
def test_any_text_is_a_name_or_a_mistake_with_a_fix(text: str) -> None:
    for prefix in ("", "rootfs:", "oci-archive:", "builtin:"):
        try:
            found = parse_image(prefix + text)
        except BadImageName as mistake:
            assert str(mistake) and mistake.fix
            assert str(mistake).isprintable()
        else:
            assert parse_image(str(found)) == found
            assert ".." not in str(found).split("/")


@pytest.mark.parametrize(
    ("base", "may"),
    [
        ("debian", True),
        ("debian:12", True),
        (f"debian@sha256:{'0' * 64}", False),
        ("builtin:busybox", False),
        ("oci-archive:/a.tar", True),
        ("rootfs:/srv/root", True),
    ],
)
def test_what_may_mean_another_image_tomorrow(base: str, may: bool) -> None:
    assert moves(base) is may
