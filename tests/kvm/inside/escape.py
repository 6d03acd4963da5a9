"""The escape suite against the installed box on real KVM, as whoever runs box in this job.

Its report leaves through the results port as it is: the host judges each finding (lab.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.kvm.inside.who import ISOLATION, as_whom, environment_of
from tests.vm.harness import PATIENCE

# The others are left to hosts that are not emulated: they need minutes more (mounts, network,
# channel), or measure how a host with one slow processor responds (load).
GROUPS = os.environ["LAB_GROUPS"].split() or ["inside", "lies", "outside", "between", "jail"]
SUITE_SECONDS = 900 * PATIENCE
SCALE = f"{4 * PATIENCE}"  # than a processor of one's own: `box` takes a second in here


@pytest.mark.timeout(SUITE_SECONDS + 120)
def test_the_escape_suite_finds_no_way_out(capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as tmp:
        folder = Path(tmp)
        folder.chmod(0o1777)
        report = folder / "report.json"
        # SIGTERM ends the attacks and not the report.
        argv = ["timeout", f"{SUITE_SECONDS}", *as_whom()]
        argv += ["/job/tree/security/escape-test.sh", "box", ISOLATION, "--accel", "auto"]
        argv += ["--programs", "/job/programs", "--scale", SCALE, "--json", str(report)]
        argv += [word for group in GROUPS for word in ("--only", group)]
        with capfd.disabled():
            print(flush=True)
            done = subprocess.run(argv, env=environment_of(folder), stdin=subprocess.DEVNULL)
        found = json.loads(report.read_text())
    with open(os.environ["LAB_RESULTS"], "w", encoding="utf-8") as port:
        port.write(json.dumps({"report": found}) + "\n")
    # the host shows each with its reading
    failed = [each["id"] for each in found["checks"] if each["result"] == "FAIL"]
    assert failed == []
    assert done.returncode == 0
