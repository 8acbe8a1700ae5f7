#!/bin/sh
# Prints the first Python that really runs, is new enough and can make environments.
#
#   find_python.sh 3.11 python3.13 python3.12 python3.11 python3
#
# A name on PATH proves nothing: pyenv's shims exist for versions that are not switched on, and Debian's python3 lacks
# ensurepip until python3-venv is installed. So each candidate is executed; then the versions that pyenv holds are tried.
# Exit 1, with nothing on stdout, if there is none.

least=$1
shift

fits() {
    "$1" -c '
import sys
least = tuple(int(part) for part in sys.argv[1].split("."))
import ensurepip, venv
if sys.version_info[:2] < least:
    sys.exit(1)
print(sys.executable)
' "$least" 2>/dev/null
}

for candidate in "$@"; do
    fits "$candidate" && exit 0
done

# Where pyenv keeps its versions: as it says itself, in its usual place, or next to the shims on PATH.
IFS=:
for root in "${PYENV_ROOT:-}" "${HOME:-}/.pyenv" $PATH; do
    case $root in
        */shims) root=${root%/shims} ;;
        *) [ "$root" = "${PYENV_ROOT:-}" ] || [ "$root" = "${HOME:-}/.pyenv" ] || continue ;;
    esac
    for candidate in "$root"/versions/3.*/bin/python; do
        fits "$candidate" && exit 0
    done
done
exit 1
