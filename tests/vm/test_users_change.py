"""What changes under an ordinary user's running VMs: the host's files, and his Boxfiles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.vm.harness import TINY, until
from tests.vm.people import COUNT, Person, PersonsHome, person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def someone() -> Iterator[Person]:
    with person() as made:
        yield made


def uid_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("Uid:")[2].split()[0])


def failure_of(home: PersonsHome, name: str) -> str:
    return str(home.report(name).get("failure", {}).get("message", ""))


def test_a_range_that_is_gone_for_a_moment_costs_no_vm(someone: Person) -> None:
    """As while somebody edits the files; what runs may run on, and nothing is started."""
    with persons_home(someone) as home:
        home.start()
        home.put("oak")
        home.ready("oak")
        pid, before = home.pid("oak"), dict(home.replaced)
        home.replace_files(dict.fromkeys(before, "# nothing\n"))
        home.put("elm")
        home.look_again()
        until(lambda: "no common range" in failure_of(home, "oak"), 20, home.log())
        until(lambda: "no common range" in failure_of(home, "elm"), 20, home.log())
        assert home.vmms() == [pid]
        home.replace_files(before)
        home.look_again()
        for name in ("oak", "elm"):
            home.ready(name)
        assert home.pid("oak") == pid
        drift = partial(home.drift, "oak")
        until(lambda: all(each.get("corrected") for each in drift()), 60, "it is corrected")


@pytest.mark.long  # three boots
def test_another_isolation_is_another_vmm_with_the_same_data(someone: Person) -> None:
    with persons_home(someone) as home:
        home.start()
        home.put("oak")
        home.ready("oak")
        own, lent = {someone.uid}, set(range(someone.first, someone.first + COUNT))
        for isolation, uids in (("standard", own), ("strict", lent)):
            former = home.pid("oak")
            home.run("oak", "sh", "-c", f"echo {isolation} > /data/note")  # not yet written out
            home.put("oak", f"{TINY}isolation: {isolation}\n")
            until(lambda: home.pid("oak") not in (0, former), 40, "another VMM runs")  # noqa: B023
            home.ready("oak")
            assert uid_of(home.pid("oak")) in uids
            assert home.run("oak", "cat", "/data/note").stdout == f"{isolation}\n".encode()
        assert home.drifted("oak") == []
