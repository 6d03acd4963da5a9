#!/bin/sh
# Runs inside a guest with a network, as its root, from standard input: says what it knows of its card, and where NAME... lead.
# usage: sh -s -- NAME...
# Every line it says begins with the nonce that only this guest was given. It judges nothing.
nonce=$(cat /run/nonce)
say() { printf '%s %s\n' "$nonce" "$*"; }
first() { sed -n "$1" | head -n 1; }

for device in /sys/class/net/*; do
    device=${device##*/}
    [ "$device" = lo ] || break
done
say device "$device"
say mac "$(cat "/sys/class/net/$device/address")"
say four "$(ip -4 addr show dev "$device" | first 's/^ *inet \([0-9.]*\).*/\1/p')"
say six "$(ip -6 addr show dev "$device" scope global | first 's/^ *inet6 \([0-9a-f:]*\).*/\1/p')"
gate4=$(ip -4 route show default | first 's/.* via \([0-9.]*\).*/\1/p')
gate6=$(ip -6 route show default | first 's/.* via \([0-9a-f:]*\).*/\1/p')
say gate4 "$gate4"
say gate6 "$gate6"

lookup() { nslookup "-type=$1" "$2" 2>/dev/null | sed -n '/^Name/,$s/^Address[^:]*:[[:space:]]*//p' | tr '\n' ' '; }
for name in "$@"; do
    {
        found="$(lookup a "$name")$(lookup aaaa "$name")"
        known=$(sed -n "s/^\([0-9a-f.:]*\)[[:space:]].*$name.*/\1/p" /etc/hosts | tr '\n' ' ')
        say "name.$name" "$found $known"
    } &
done
ping -c 1 -W 1 "$gate4" >/dev/null
ping -c 1 -W 1 "$gate6" >/dev/null
wait
say gatemac "$(ip neigh show "$gate4" | first 's/.* lladdr \([0-9a-f:]*\).*/\1/p')"
say links "$(ip -6 neigh show | sed -n 's/^\(fe80:[0-9a-f:]*\) .*/\1/p' | sort -u | tr '\n' ' ')"
say finished yes
