#!/bin/sh
# Make a virtual environment: create-venv.sh FOLDER [PYTHON]. Without PYTHON, the first interpreter that will do.
set -eu
folder=$1
candidates=${2:-python3 python3.11 python3.12 python3.13 python3.14}
crippled=

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
