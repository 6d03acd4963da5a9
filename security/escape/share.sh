#!/bin/sh
# Runs inside a guest with shared directories, as its root, from standard input: looks for what lies beside them on the host.
# usage: sh -s -- CANARY_FILE DECOY DIRECTORY...
# Every line it says begins with the nonce that only this guest was given. It judges nothing.
nonce=$(cat /run/nonce)
canary=$1 decoy=$2
shift 2

say() { printf '%s %s\n' "$nonce" "$*"; }
look() {
    if said=$(head -c 100 "$2" 2>&1); then
        say "$1" "read $said"
    else
        say "$1" "refused $(printf %s "$said" | tail -n 1 | cut -c1-100)"
    fi
}

up=../../../../../../../../../../../..
number=0
for share in "$@"; do
    number=$((number + 1))
    look "inside.$number" "$share/inner/word"

    # names: none of them may lead out of the directory; nothing lies there in the guest
    look "name.$number.straight" "$share$canary"
    look "name.$number.up" "$share/$up$canary"
    look "name.$number.inner" "$share/inner/../../canary"
    look "name.$number.dots" "$share/.../...$canary"
    look "name.$number.encoded" "$share/%2e%2e/%2e%2e/canary"
    look "name.$number.backslash" "$share/..\\..\\canary"
    look "name.$number.newline" "$share/..
/canary"
    look "name.$number.slashes" "$share/.//../$up//$canary"
    exec 7<"$share/inner"
    look "name.$number.descriptor" "/proc/self/fd/7/../../canary"
    look "name.$number.magic" "/proc/self/fd/7/$up$canary"
    look "name.$number.cwd" "$(cd "$share/inner" && echo "/proc/$$/cwd/../../canary")"
    exec 7<&-
    say "name.$number.listed" refused
    for found in "$share/../canary" "$share/inner/../../canary"; do
        [ -e "$found" ] && say "name.$number.listed" "read $found"
    done
    if ln "$canary" "$share/hard" 2>/dev/null; then
        look "name.$number.hard" "$share/hard"
    else
        say "name.$number.hard" "refused a hard link"
    fi
    rm -f "$share/hard"
done

# links: they lead to what the guest has at those places, so something is put there
mkdir -p "$(dirname "$canary")"
printf %s "$decoy" >"$canary"
printf %s "$decoy" >/canary
number=0
for share in "$@"; do
    number=$((number + 1))
    for link in absolute relative up through chain folder/canary; do
        look "link.$number.$link" "$share/$link"
    done
    look "circle.$number" "$share/circle"
    # and those that the guest makes, where it may
    if ln -s "$canary" "$share/made" 2>/dev/null; then
        look "link.$number.made" "$share/made"
        ln "$share/made" "$share/made2" 2>/dev/null && look "link.$number.hard" "$share/made2"
        rm -f "$share/made" "$share/made2"
    fi
done
rm -f "$canary" /canary
say finished yes
