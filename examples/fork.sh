#!/bin/sh
# The story of a fork: a Python sandbox from an OCI image, work in its /data, a fork that tries something
# else, what that changed, and the same brought back. It needs docker.io, as the example python-dev does.
set -eu

cd "$(dirname -- "$0")/.."
NAMES='py try'
STARTED=$(date +%s)
. examples/story.sh

chapter '1. A Python sandbox, from an image in a registry.'
begin
cd "$BOX_HOME"
show box new py --from python-dev
show box apply -f py.box.yaml --wait --timeout 600
show box exec py -- python3 -V

chapter '2. Work in /data, the only thing that stays.'
show box exec py -- sh -c 'echo "import sys; print(sum(map(int, sys.argv[1:])))" >/data/total.py'
show box exec py -- sh -c 'echo "call it with numbers" >/data/NOTES'
show box exec py -- python3 /data/total.py 1 2 3

chapter '3. A fork: the same image, and a /data that begins as this one and goes its own way.'
tell 'A disk is branched while no machine writes to it, so py is stopped:'
show sed -i '1i state: stopped' py.box.yaml
show box apply -f py.box.yaml --wait
show box fork py try --wait
show box exec try -- sed -i s/sum/max/ /data/total.py
show box exec try -- sh -c 'cd /data && rm NOTES && mkdir docs && echo "the largest of its numbers" >docs/README'
show box exec try -- python3 /data/total.py 1 2 3

chapter '4. What did it change?'
show sed -i '1i state: stopped' boxes/try.box.yaml
show box apply -f boxes/try.box.yaml --wait
show box fork diff try

chapter '5. It is liked, so py gets it: all of it, or nothing.'
show box fork apply try --dry-run
show box fork apply try
show sed -i '/^state: /d' py.box.yaml
show box apply -f py.box.yaml --wait
show box exec py -- python3 /data/total.py 1 2 3
show box snapshots py
show box fork discard try
NAMES=py # try is gone but for its data, which is erased in a minute, and with this folder now

chapter "That was the whole story, in $(($(date +%s) - STARTED)) s. Its controller now stops, and its folder goes."
