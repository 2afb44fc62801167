# Shared by the scripts beside it. POSIX sh, so that it runs in dash, zsh and the bash of macOS alike.
# shellcheck shell=sh

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
program=scripts/$(basename -- "$0")

complain() {
  printf '%s: %s\n' "$program" "$1" >&2
}

# is_suitable PYTHON: whether it runs and is a version that chatmill supports.
is_suitable() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' </dev/null >/dev/null 2>&1
}

# Sets $python to the Python that makes and fills .venv: the one of .venv if it works, else the first suitable one that
# can make a virtual environment, else the first suitable one.
find_python() {
  python=$root/.venv/bin/python
  if is_suitable "$python"; then
    return
  fi
  python=
  found=
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
    if [ -z "$candidate" ] || ! command -v "$candidate" >/dev/null 2>&1; then
      continue
    fi
    if is_suitable "$candidate"; then
      if "$candidate" -c 'import ensurepip, venv' </dev/null >/dev/null 2>&1; then
        python=$candidate
        return
      fi
      python=${python:-$candidate}
    else
      found="$found, $candidate is $("$candidate" -V 2>&1 </dev/null | head -n 1)"
    fi
  done
  if [ -z "$python" ]; then
    complain "Python 3.11, 3.12 or 3.13 is needed${found:+ ($(printf '%s' "$found" | cut -c 3-))}: install one, or name it, as in PYTHON=/path/to/python3.12 $program"
    exit 1
  fi
}

# prepare LOCK: make sure that .venv holds what the lock file LOCK lists.
prepare() {
  find_python
  "$python" "$root/scripts/install.py" "$1" </dev/null || exit $?
}
