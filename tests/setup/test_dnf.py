"""`packages` through a real dnf and rpm, which Debian has, too; the archive is on its disk."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from specs.boxfile import Boxfile
from specs.recipe import steps
from tests.setup.freshroot import FreshRoot, fresh_root

pytestmark = [pytest.mark.long, pytest.mark.needs_root, pytest.mark.timeout(600)]

ARCHIVE = r"""
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends dnf rpm createrepo-c
mkdir -p /srv/archive /etc/yum.repos.d
cat >/srv/some.spec <<SPEC
Name: some
Version: 1
Release: 1
Summary: a file
License: none
BuildArch: noarch
Recommends: some-more
%description
A file.
%package more
Summary: another file
%description more
Another file.
%install
mkdir -p %{buildroot}/opt
echo some >%{buildroot}/opt/some
echo more >%{buildroot}/opt/more
%files
/opt/some
%files more
/opt/more
SPEC
rpmbuild -bb --define '_rpmdir /srv/archive' /srv/some.spec
createrepo_c -q /srv/archive
printf '[own]\nname=own\nbaseurl=file:///srv/archive\ngpgcheck=0\n' >/etc/yum.repos.d/own.repo
"""


@pytest.fixture(scope="module")
def root() -> Iterator[FreshRoot]:
    with (
        tempfile.TemporaryDirectory(prefix="boxtest-") as tmp,
        fresh_root("bookworm", Path(tmp)) as made,
    ):
        done = made.run(ARCHIVE, timeout=400)
        assert done.returncode == 0, done.stdout[-3000:]
        yield made


def installed(root: FreshRoot, name: str) -> tuple[int, str]:
    (step,) = steps(Boxfile(name="fern", packages=[name], pkgmgr="dnf"))
    done = root.run(shlex.join(step.argv), timeout=120)
    return done.returncode, done.stdout


def test_dnf_installs_what_is_named_and_keeps_no_cache(root: FreshRoot) -> None:
    status, said = installed(root, "some")
    assert status == 0, said
    assert root.run("ls /opt; ls /var/cache/dnf", timeout=20).stdout == "some\n"


def test_what_dnf_does_not_know_is_named_with_a_fix(root: FreshRoot) -> None:
    status, said = installed(root, "no-such-thing")
    assert status == 1
    assert "No match for argument: no-such-thing" in said
    assert "box: dnf did not install the packages\n  fix: " in said
