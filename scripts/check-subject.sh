#!/bin/sh
# The first line of a commit message is at most 72 characters long, and a blank line follows: check-subject.sh FILE.
set -eu
subject=$(head -n 1 "$1")
if [ "${#subject}" -gt 72 ]; then
    echo "the subject has ${#subject} characters, 72 at most: say why in the body" >&2
    exit 1
fi
if [ -n "$(sed -n 2p "$1" | grep -v '^#' || true)" ]; then
    echo "a blank line belongs between the subject and the body" >&2
    exit 1
fi
