"""The two scripts that a build runs inside the guest, for any POSIX shell (busybox, dash, bash).

They are constants: what a Boxfile says reaches them as arguments or on standard input, as data, and
nothing of it is ever evaluated. They run as root in a machine that is thrown away when they fail,
so they tidy up only behind themselves when they succeed. `specs.recipe` says what they are given.
"""

from __future__ import annotations

_START = r"""set -eu
umask 022
fail() {
    printf 'box: %s\n  fix: %s\n' "$1" "$2" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
"""

# $1: apk, apt, dnf or nothing; then the names.
PACKAGES = (
    _START
    + r"""
exec </dev/null
wanted=$1
shift

program() { case $1 in apt) echo apt-get ;; *) echo "$1" ;; esac; }

# The one whose own list of what is installed is here: another may be just a program.
inferred() {
    if have apk && [ -d /etc/apk ]; then
        echo apk
    elif have apt-get && [ -e /var/lib/dpkg/status ]; then
        echo apt
    elif have dnf; then
        echo dnf
    fi
}

installed_with_apk() { apk add --no-cache "$@" || failed apk; }

installed_with_apt() {
    export DEBIAN_FRONTEND=noninteractive
    # Without Error-Mode a repository that does not answer is a warning. What a package would start
    # has no business in a build.
    apt-get -q -o APT::Update::Error-Mode=any -o Acquire::Retries=3 \
        -o Acquire::Languages=none update ||
        fail 'apt-get cannot read the lists of its repositories' \
            'see the lines above; they are in /etc/apt of the image, and must be public addresses'
    policy=/usr/sbin/policy-rc.d
    made=
    if ! [ -e "$policy" ] && ! [ -L "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        made=1
    fi
    # Files are not synced one by one: a build that is cut short is thrown away.
    apt-get -q -y -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
        -o Dpkg::Options::=--force-unsafe-io \
        --no-install-recommends install -- "$@" || failed apt-get
    [ -z "$made" ] || rm -f "$policy"
    apt-get clean
    rm -rf /var/lib/apt/lists/*
}

installed_with_dnf() {
    dnf -y --setopt=install_weak_deps=False install "$@" || failed dnf
    dnf clean all
    rm -rf /var/cache/dnf/* /var/cache/libdnf5/*
}

failed() {
    fail "$1 did not install the packages" \
        'see the lines above; a name it does not know has to be corrected in packages'
}

manager=$wanted
if [ -z "$manager" ]; then
    manager=$(inferred)
    [ -n "$manager" ] || fail 'this image has no package manager: none of apk, apt and dnf' \
        'choose a base that has one, or bring what you need with run'
elif ! have "$(program "$manager")"; then
    other=$(inferred)
    fail "pkgmgr is $manager, and this image has no $(program "$manager")" \
        "remove the line pkgmgr${other:+ (what is here is $other)}, or choose another base"
fi
"installed_with_$manager" "$@"
"""
)

# Records on standard input, one value a line; behind them, the bytes of the files.
BLUEPRINT = (
    _START
    + r"""
input=$(mktemp)
trap 'rm -f "$input"' EXIT
cat >"$input"
exec 3<"$input" </dev/null

take() {
    for variable in "$@"; do
        IFS= read -r "$variable" <&3 || fail 'a record breaks off' 'report this: box has a fault'
    done
}

in_file() { grep -q "$1" "$2" 2>/dev/null; }
has_number() { in_file "^[^:]*:[^:]*:$1:" "$2"; }

# Ends with a line break, so that what is added is a line of its own.
add_line() { # LINE FILE
    if [ -s "$2" ] && [ -n "$(tail -c 1 "$2")" ]; then echo >>"$2"; fi
    printf '%s\n' "$1" >>"$2"
}

unused_number() { # FIRST
    number=$1
    while has_number "$number" /etc/passwd || has_number "$number" /etc/group; do
        number=$((number + 1))
    done
    echo "$number"
}

need_group() { # NAME NUMBER (or nothing)
    if in_file "^$1:" /etc/group; then return; fi
    number=$2
    # From 100 on, as of a system: those from 1000 on are for users.
    if [ -z "$number" ] || has_number "$number" /etc/group; then
        number=$(unused_number 100)
    fi
    add_line "$1:x:$number:" /etc/group
    if [ -e /etc/gshadow ]; then add_line "$1:!::" /etc/gshadow; fi
}

need_member() { # USER GROUP
    need_group "$2" ""
    for list in /etc/group /etc/gshadow; do
        [ -e "$list" ] || continue
        in_file "^$2:.*[:,]$1\$" "$list" || in_file "^$2:.*[:,]$1," "$list" ||
            sed -i -e "/^$2:/s/\$/,$1/" -e "/^$2:/s/:,/:/" "$list"
    done
}

keeps() { # WHAT WANTED FOUND
    [ -z "$2" ] || [ "$2" = "$3" ] ||
        fail "the image has a user $name already, whose $1 is $3 and not $2" \
            "remove $1 from this user, or choose another name"
}

known_user() {
    while IFS=: read -r found _ found_uid found_gid found_gecos found_home found_shell; do
        [ "$found" != "$name" ] || break
    done </etc/passwd
    found_group=$(sed -n "s/^\([^:]*\):[^:]*:$found_gid:.*/\1/p" /etc/group | head -n 1)
    keeps uid "$uid" "$found_uid"
    keeps gecos "$gecos" "$found_gecos"
    keeps primary_group "$group" "$found_group"
    keeps homedir "$home" "$found_home"
    keeps shell "$shell" "$found_shell"
}

new_user() {
    if [ -n "$uid" ]; then
        if has_number "$uid" /etc/passwd; then
            fail "uid $uid, for $name, belongs to another user of the image" 'choose another number'
        fi
    else
        uid=$(unused_number "$first")
    fi
    : "${group:=$name}" "${home:=/home/$name}" "${shell:=/bin/sh}"
    if [ "$group" = "$name" ]; then need_group "$group" "$uid"; else need_group "$group" ""; fi
    gid=$(sed -n "s/^$group:[^:]*:\([0-9]*\):.*/\1/p" /etc/group | head -n 1)
    add_line "$name:x:$uid:$gid:$gecos:$home:$shell" /etc/passwd
    if [ -e /etc/shadow ]; then add_line "$name:!::0:99999:7:::" /etc/shadow; fi
    if [ "$make_home" = no ] || [ -e "$home" ]; then return; fi
    mkdir -p "$home"
    if [ -d /etc/skel ]; then cp -R /etc/skel/. "$home/"; fi
    chown -R "$uid:$gid" "$home"
    chmod 0700 "$home"
}

add_user() {
    take name uid gecos group groups home shell make_home first
    if in_file "^$name:" /etc/passwd; then known_user; else new_user; fi
    for each in $groups; do need_member "$name" "$each"; done
}

add_file() {
    take path owner mode append size rest
    if [ -d "$path" ]; then fail "$path is a folder of the image" 'write the path of a file'; fi
    folder=${path%/*}
    mkdir -p "${folder:-/}"
    if ! [ -e "$path" ] || [ "$append" = no ]; then
        : "${owner:=0:0}" "${mode:=0644}"
        : >"$path"
    fi
    if [ "$size" != 0 ]; then tail -c "$rest" "$input" | head -c "$size" >>"$path"; fi
    if [ -n "$owner" ]; then
        chown "$owner" "$path" ||
            fail "$path: the image knows no owner $owner" 'add it to users of the blueprint'
    fi
    if [ -n "$mode" ]; then chmod "$mode" "$path"; fi # last: chown takes setuid away
}

while take kind && [ "$kind" != end ]; do
    "add_$kind"
done
"""
)
