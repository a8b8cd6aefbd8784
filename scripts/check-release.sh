#!/bin/sh
# Refuse a release whose parts disagree: check-release.sh TAG ADDRESS, in a checkout of verl-e2e. ADDRESS is the page of
# the repository that publishes it, to which messages and the metadata lead.
set -eu
tag=$1
address=$2
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' bot/verl_e2e/__init__.py)
home=$(sed -n 's/^Homepage = "\(.*\)"$/\1/p' pyproject.toml)

refuse() {
    echo "$1" >&2
    exit 2
}
[ "$tag" = "v$version" ] ||
    refuse "the tag is $tag and the version is $version: set __version__ in bot/verl_e2e/__init__.py and tag that commit"
grep -q "^## $version\$" CHANGELOG.md ||
    refuse "CHANGELOG.md has no section $version: say there what the version gives, below '## $version'"
[ "$address" = "$home" ] ||
    refuse "this repository is $address and the metadata leads to $home: correct [project.urls] in pyproject.toml"
