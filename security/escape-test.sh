#!/bin/sh
# Attacks the sandboxes that a `box` command makes, and says what held: security/escape-test.sh --help
# It must run where nothing of the project is installed but Python, and a C compiler or the programs
# that another machine's `--compile DIR` made.
set -eu

here=$(cd "$(dirname -- "$0")" && pwd)
command -v python3 >/dev/null || {
    printf 'escape-test: python3 is not installed\n  fix: apt-get install python3\n' >&2
    exit 2
}
exec python3 -I -B "$here/escape" "$@"
