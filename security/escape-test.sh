#!/bin/sh
# Attacks the sandboxes that a `box` command makes, and says what held: security/escape-test.sh --help
# It must run where nothing of the project is installed but Python and a C compiler.
set -eu

here=$(cd "$(dirname -- "$0")" && pwd)
for program in python3 cc; do
    command -v "$program" >/dev/null || {
        printf 'escape-test: %s is not installed\n  fix: apt-get install python3 gcc libc6-dev\n' "$program" >&2
        exit 2
    }
done
exec python3 -I -B "$here/escape" "$@"
