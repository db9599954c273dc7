#!/bin/sh
# Print the first Python of the given versions that can run: from the PATH, then from
# pyenv. Without one, print any Python at all: environment.py then says what is wrong.
#
#     sh tools/find-python.sh 3.13 3.12 3.11

is_one_of() { # interpreter, then versions
    found=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
    shift
    for version in "$@"; do
        [ "$found" = "$version" ] && return 0
    done
    return 1
}

for version in "$@"; do
    if is_one_of "python$version" "$version"; then
        echo "python$version"
        exit
    fi
done
for python in python3 python; do
    if is_one_of "$python" "$@"; then
        echo "$python"
        exit
    fi
done
if root=$(pyenv root 2>/dev/null); then
    for version in "$@"; do
        for python in "$root/versions/$version".*/bin/python; do
            if is_one_of "$python" "$version"; then
                echo "$python"
                exit
            fi
        done
    done
fi
for python in python3 python; do
    if "$python" -c "" 2>/dev/null; then
        echo "$python"
        exit
    fi
done
exit 1
