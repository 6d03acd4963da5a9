"""`python3 -I security/escape`: finds its own package, whatever the working directory is."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(importlib.import_module("escape.suite").main(sys.argv[1:]))
