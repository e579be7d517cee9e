#!/bin/sh
set -e
here=$(cd "$(dirname "$0")" && pwd); top=$(git -C "$here" rev-parse --show-toplevel); cd "$top"
python3 "$here/plan.py"
python3 "$here/codemod.py" "$top" "$here/plan.json"
python3 "$here/post.py" "$top"
.venv/bin/ruff check --fix -q --select I,F401 . || true
.venv/bin/ruff format -q .
python3 "$here/rewrap.py" "$top"
.venv/bin/ruff format -q .
.venv/bin/ruff check . && .venv/bin/mypy && .venv/bin/lint-imports
