#!/bin/sh
# Make a virtual environment: create-venv.sh FOLDER [PYTHON]. Without PYTHON, the first interpreter that works.
# The script replaces what FOLDER holds, so FOLDER must be new, empty, or a virtual environment.
set -eu
folder=$1
candidates=${2:-python3 python3.11 python3.12 python3.13 python3.14}
crippled=

if { [ -e "$folder" ] || [ -L "$folder" ]; } && [ ! -d "$folder" ]; then
    echo "$folder is not a folder; name a new one for the virtual environment" >&2
    exit 2
fi
# A checkout may hold a pyvenv.cfg that an earlier version of this script wrote there: do not empty it.
if [ -d "$folder" ] && [ -n "$(ls -A "$folder")" ] && { [ ! -f "$folder/pyvenv.cfg" ] || [ -e "$folder/.git" ]; }; then
    echo "$folder is not empty and is not a virtual environment, and its files would be deleted:" \
        "name a new folder, such as $folder/venv" >&2
    exit 2
fi

for python in $candidates; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
    if "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        exec "$python" -m venv --clear "$folder"
    fi
    crippled=${crippled:-$python}
done

if [ -n "$crippled" ]; then
    echo "$crippled cannot make a virtual environment because its module ensurepip is missing:" \
        "install it (Debian and Ubuntu: apt-get install python3-venv) or name another interpreter with PYTHON=..." >&2
else
    echo "No Python 3.11 or later among: $candidates; install one or name it with PYTHON=..." >&2
fi
exit 2
