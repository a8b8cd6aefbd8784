#!/bin/sh
# Fetch the commits of Megatron-LM that commits of Bridge name: fetch-megatron-lm.sh BRIDGE-CHECKOUT ADDRESS COMMIT...
# A COMMIT after `=` is one of Megatron-LM itself.
# The pull request decides which commit, never where from: its .gitmodules is not read. The objects go where git itself
# keeps those of a submodule, in the checkout's git folder, of which no commit can hold anything.
set -eu
bridge=$1
address=$2
shift 2
place=$bridge/.git/modules/3rdparty/Megatron-LM

git init --quiet --bare "$place"
for commit; do
    named=${commit#=}
    [ "$named" != "$commit" ] || named=$(git --git-dir="$bridge/.git" ls-tree "$commit" 3rdparty/Megatron-LM |
        sed -n 's/^160000 commit \([0-9a-f]*\).*/\1/p')
    [ -z "$named" ] || git --git-dir="$place" fetch --quiet --no-tags --depth 1 "$address" "$named"
done
