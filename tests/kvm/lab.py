"""Boots the lab: a machine under emulation whose CPU has SVM, so that box meets a real /dev/kvm.

The console is shown as it comes; the results come over a second serial port, a JSON object per
line. The machine has no network device at all. Nothing here knows what is tested inside.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import GUEST_KERNEL
from tests.escape.threat_model import differences
from tests.failures import brief, words_of
from tests.kvm.image import LabImage, lab_image, missing
from tests.kvm.job import PATIENCE, SITE, Job
from tests.lint.tree import ROOMS, ROOT, project_files
from tests.setup.wheel import build_wheel

RAM_MIB = 3072
LAB_SECONDS = 1080 * PATIENCE


@dataclass
class Outcome:
    """What came back. `ended` is the status that the lab gave itself; None when it never did.
    `reports` are those of the escape suite."""

    results: list[dict[str, object]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    ended: int | None = None
    console: str = ""
    seconds: float = 0.0

    def failures(self) -> list[str]:
        """Each check that did not pass, with its reading and why; the console has all it said."""
        return [
            "\n".join([f"{result['test']}: failed", *words_of(str(result["text"])[-3000:])])
            for result in self.results
            if result["outcome"] == "failed"
        ]


def job_disk(job: Job, folder: Path) -> Path:
    """The second disk: what is in this tree's wheel, its tests, the guests' kernel, settings."""
    content = folder / "job"
    tree = content / "tree"
    for path in project_files():
        inside = path.relative_to(ROOT)
        # The product itself must come out of the wheel, so its modules are left behind.
        if inside.parts[0] in ROOMS:
            continue
        copy = tree / inside
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    for part in ("security", "tests/kvm", "tests/vm"):
        _compile(tree / part, f"/job/tree/{part}")
    # There is no compiler of C in there.
    subprocess.run(
        [str(ROOT / "security/escape-test.sh"), "--compile", str(content / "programs")],
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )
    _unpack(build_wheel(folder), content / "site")
    shutil.copy2(ROOT / "tests/kvm/init.sh", content / "init.sh")
    (content / "settings").write_text(job.settings())
    release = GUEST_KERNEL.parent.resolve()
    shutil.copytree(release, content / "kernels" / release.name)
    (content / "kernels/current").symlink_to(release.name)
    disk = folder / "job.squashfs"
    subprocess.run(
        # Uncompressed: the emulated CPU would have to unpack it.
        ["mksquashfs", str(content), str(disk), "-quiet", "-no-progress", "-all-root"]
        + ["-noI", "-noD", "-noF", "-noX"],
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )
    return disk


def _unpack(wheel: Path, site: Path) -> None:
    """Install the wheel into a folder that the lab copies next to its packages.

    pip needs a second out here, and half a minute on the emulated CPU.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--no-compile", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, timeout=120)
    _compile(site, SITE)


def _compile(folder: Path, inside: str) -> None:
    """Compile Python modules that will lie in `inside`, which takes the emulated CPU a minute.

    A lab whose Python is of another version than this one takes no notice.
    """
    argv = [sys.executable, "-m", "compileall", "-q", "-s", str(folder), "-p", inside, str(folder)]
    subprocess.run(argv, check=True, timeout=120)


def machine(image: LabImage, disk: Path, results: Path) -> list[str]:
    """QEMU's command line. The CPU has AMD's SVM with nested paging, the emulated kind QEMU has."""
    words = ["console=ttyS0", "quiet", "loglevel=4", "panic=-1", "reboot=t", "mitigations=off"]
    # A tick that comes again and again: QEMU's emulation of an APIC now and then loses the one
    # interrupt that a tickless kernel waits for while a virtual machine runs inside, and the whole
    # lab then sleeps until somebody presses a key (for minutes, seen in 2 of 4 runs).
    words += ["nohz=off", "highres=off"]
    mhz = re.search(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if mhz:  # calibrating an emulated TSC against an emulated timer hangs at random
        words.append(f"tsc_early_khz={int(float(mhz[1]) * 1000)}")
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"]
    argv += ["-no-reboot", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=512"]
    # One CPU: with two, each start of a first virtual machine inside rewrites code of the scheduler
    # (a static key) while the other CPU runs it, and QEMU's emulation then now and then goes on
    # with the old bytes for ever. Two were no faster either: 100 s against 95 s for the same tests.
    argv += ["-cpu", "max,+svm,+npt", "-smp", "1", "-m", str(RAM_MIB)]
    argv += ["-kernel", str(image.kernel), "-initrd", str(image.initramfs)]
    argv += ["-append", " ".join(words)]
    # snapshot=on: what the lab writes goes to a file that QEMU has already unlinked.
    argv += ["-drive", f"file={image.root},format=raw,if=virtio,snapshot=on"]
    argv += ["-drive", f"file={disk},format=raw,if=virtio,readonly=on"]
    argv += ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
    argv += ["-chardev", f"file,id=results,path={results}", "-serial", "chardev:results"]
    return argv


def run(job: Job, *, seconds: float = LAB_SECONDS) -> Outcome:
    """Make what is missing, boot, show the console on stdout, collect the results."""
    with tempfile.TemporaryDirectory(prefix="boxlab-") as scratch:
        folder = Path(scratch)
        image = lab_image(say)
        disk = job_disk(job, folder)
        results = folder / "results"
        results.touch()
        started = time.monotonic()
        argv = machine(image, disk, results)
        if job.shell:
            subprocess.run(argv, check=False)
            outcome = Outcome()
        else:
            outcome = Outcome(console=follow(argv, seconds))
        outcome.seconds = time.monotonic() - started
        for line in results.read_text(errors="replace").splitlines():
            _understand(line, outcome)
        return outcome


def _understand(line: str, outcome: Outcome) -> None:
    found = json.loads(line)
    if "end" in found:
        outcome.ended = int(found["end"])
    elif "report" in found:
        outcome.reports.append(found["report"])
        outcome.results += list(of_the_suite(found["report"]))
    else:
        outcome.results.append(found)


def of_the_suite(report: dict[str, Any]) -> Iterator[dict[str, object]]:
    """The findings of a report of the escape suite as results; a WARN is named with its reading.

    On KVM nothing less than a PASS of the processor's wall will do, and what the suite read must be
    what the threat model says.
    """
    for found in report["checks"]:
        word = {"PASS": "passed", "WARN": "warned"}.get(found["result"], "failed")
        if found["id"] == "outside.hardware" and word != "passed":
            word = "failed"
        yield {
            "test": f"escape-test.sh {found['id']}",
            "outcome": word,
            "seconds": round(found["seconds"], 1),
            "text": text_of(found, word),
        }
    lies = differences(report)
    yield {
        "test": "security/THREAT_MODEL.md says what the suite read",
        "outcome": "failed" if lies else "passed",
        "seconds": 0.0,
        "text": "\n".join(lies),
    }


def text_of(found: dict[str, Any], word: str) -> str:
    if word == "passed":
        return ""
    reading = str(found["reading"])
    return f"{reading}\na PASS would mean: {found['proves']}" if word == "failed" else reading


def follow(argv: list[str], seconds: float) -> str:
    """Run QEMU, passing its console on, until it ends or the time is up; the console's text.

    QEMU ends with this process, also when that is killed.
    """
    heard = bytearray()
    deadline = time.monotonic() + seconds
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as qemu:
        assert qemu.stdout is not None
        try:
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([qemu.stdout], [], [], left)[0]:
                    break
                data = os.read(qemu.stdout.fileno(), 65536)
                if not data:
                    break
                heard += data
                sys.stdout.write(data.decode("utf-8", "replace").replace("\r", ""))
                sys.stdout.flush()
            else:
                say(f"the lab did not end within {seconds:g} s")
        finally:
            qemu.kill()
    return heard.decode("utf-8", "replace").replace("\r", "")


def say(words: str) -> None:
    print(f"lab: {words}", flush=True)


def summary(job: Job, outcome: Outcome) -> list[str]:
    """For people: one line per test, then the count."""
    lines = [f"{r['outcome']!s:8} {r['seconds']!s:>6} s  {_name(r)}" for r in outcome.results]
    counts = Counter(str(r["outcome"]) for r in outcome.results)
    counted = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
    verdict = "ended well" if outcome.ended == 0 else f"ended with status {outcome.ended}"
    which = " ".join((job.isolation, "as", job.user, *job.groups))
    took = f"{verdict} after {outcome.seconds:.0f} s"
    return [*lines, f"lab, {which}: {counted or 'no checks'}; {took}"]


def _name(result: dict[str, object]) -> str:
    name = str(result["test"]).rpartition("/")[2]
    if result["outcome"] == "failed":
        return ": ".join([name, *brief(words_of(str(result["text"])))[:1]])
    return f"{name}: {result['text']}" if result["outcome"] == "warned" else name


def main(arguments: list[str]) -> int:
    """`./dev kvm-lab [--shell] [root|user] [strict|standard] [GROUP...] [pytest's arguments]`."""
    job = Job.named(arguments)
    if why := missing():
        print(f"kvm-lab: {why}", file=sys.stderr)
        return 1
    outcome = run(job)
    if job.shell:
        return 0
    print("\n".join(["", *summary(job, outcome)]))
    return 0 if outcome.ended == 0 and outcome.results and not outcome.failures() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
