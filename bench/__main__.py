"""`python -m bench [NAME...]`: run benchmarks, print what was measured and what missed its target.

Exit status 0 when every target is met, 1 when one is missed or a benchmark failed, 2 for a usage
error, 130 when it was told to end: then what was measured until then is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import bridged, execute, fleet, images, line, moves, readings, shares, walls
from bench.measure import FEWEST, Row, table

Benchmark = Callable[[int], list[Row]]

BENCHMARKS: dict[str, Benchmark] = {
    "ready": line.ready,
    "noticed": line.noticed,
    "saved": line.saved,
    "exec": execute.execute,
    "run": execute.fresh,
    "passes": fleet.passes,
    "growth": fleet.growth,
    "memory": fleet.memory,
    "idle": fleet.idle,
    "readback": readings.readback,
    "changed": walls.changed,
    "jail": walls.overhead,
    "shared": shares.shared,
    "bridged": bridged.bridged,
    "imported": moves.imported,
    "exported": moves.exported,
    "forked": moves.forked,
    "images": images.images,
    "settled": fleet.settled,
    "suite": walls.suite,
}
# Take minutes, and some of them gigabytes of memory or disk.
ONLY_WITH_ALL = {"images", "imported", "exported", "settled", "suite"}


def main() -> int:
    options = _arguments()
    # A benchmark that is told to end still takes its VMs and homes away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = options.names or [n for n in BENCHMARKS if options.all or n not in ONLY_WITH_ALL]
    rows: list[Row] = []
    tried: list[str] = []
    failed = []
    ended = False
    for name in names:
        tried.append(name)
        load = os.getloadavg()[0]
        print(f"{name}: load {load:.1f} ...", file=sys.stderr, end="", flush=True)
        begun = time.monotonic()
        try:
            rows += BENCHMARKS[name](options.repeat)
        except Exception:
            # One that cannot run must not hide what the others measured.
            traceback.print_exc()
            failed.append(name)
        except KeyboardInterrupt:
            failed.append(name)
            ended = True
        print(f" {time.monotonic() - begun:.0f} s", file=sys.stderr)
        if ended:
            break
    print(table(rows))
    _conclude(rows, failed, tried)
    if options.json is not None:
        options.json.write_text(json.dumps(_document(rows, failed), indent=1) + "\n")
    if ended:
        return 130
    return 0 if not failed and all(row.met for row in rows) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description="Benchmarks on real parts.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--all",
        action="store_true",
        help="also those that take minutes: images, imported, exported, settled, suite",
    )
    parser.add_argument("--repeat", type=int, default=FEWEST, help="samples, at least %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE too")
    options = parser.parse_args()
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    if options.repeat < FEWEST:
        parser.error(f"fewer than {FEWEST} samples say nothing")
    if os.geteuid() != 0:
        parser.error("run it as root: it starts microVMs")
    return options


def _conclude(rows: Sequence[Row], failed: Sequence[str], tried: Sequence[str]) -> None:
    missed = [f"{row.benchmark}: {row.what}" for row in rows if not row.met]
    for text in missed:
        print(f"target missed: {text}")
    for name in failed:
        print(f"could not be measured: {name}")
    left_out = [name for name in BENCHMARKS if name not in tried]
    if left_out:
        print(f"not run: {', '.join(left_out)}")


def _document(rows: Sequence[Row], failed: Sequence[str]) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rows": [row.to_plain() for row in rows],
        "failed": list(failed),
    }


if __name__ == "__main__":
    sys.exit(main())
