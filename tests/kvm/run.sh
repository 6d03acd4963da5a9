#!/bin/sh
# Inside the lab: the tests of one job, with the installed box and not this tree's modules.
set -u
cd /job/tree || exit 91
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export BOX_TEST_REQUIRE=root,kvm,cgroup2 BOX_TEST_RESULTS=/var/tmp/results
# This machine is emulated, so a virtual machine inside it needs several seconds to start.
probe=$((60 * LAB_PATIENCE))
[ "$probe" -le 300 ] || probe=300 # the most that box takes
export BOX_TEST_ACCEL=auto BOX_TEST_SLOWNESS=20 BOX_TEST_CONFIG="kvm_probe_seconds = $probe"
export BOX_TEST_PATIENCE="$LAB_PATIENCE"

everybody='tests/kvm/inside/onkvm.py tests/kvm/inside/escape.py'
if [ "$LAB_USER" = root ]; then
    files="$everybody tests/vm/test_jail_cgroup.py"
else
    # What `./dev groups` does on a host without systemd; and what a login would have made.
    /opt/box/bin/python -m reconcilers.confinement.handover "$(id -u lab)" $$ || exit 92
    install -d -m 755 /run/user
    install -d -m 700 -o lab -g lab "/run/user/$(id -u lab)"
    # As systemd gives it to every login; root's box raises the kernel's 4,096 by itself.
    prlimit --nofile=1024:524288 --pid $$ || exit 93
    files=$everybody
fi
# shellcheck disable=SC2086 # one word per file is meant
exec /opt/box/bin/python -m pytest -p pytest_timeout -p pytest_asyncio.plugin \
    -p tests.kvm.inside.report -p no:cacheprovider --color=no --timeout=$((400 * LAB_PATIENCE)) -v ${LAB_ARGUMENTS:-$files}
