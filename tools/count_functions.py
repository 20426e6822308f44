"""Count the functions of resperf that a command enters: how far its reader has to walk.

    python tools/count_functions.py predict resnet50 --device cpu

In a fresh process, with empty caches and no calibration. Lambdas, comprehensions, bodies of modules
and classes do not count.
"""

from __future__ import annotations

import contextlib
import cProfile
import io
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
MADE_BY_PYTHON = "<"
"""How names of code begin that nobody named."""
CLASS_BODY = "__qualname__"
"""A name that only bodies of classes set."""
INSIDE = "--inside"


def entered(arguments: list[str]) -> set[CodeType]:
    """Run a command of resperf in this process; return the code of its functions entered."""
    from resperf.cli.main import main

    profile = cProfile.Profile(builtins=False)
    with contextlib.redirect_stdout(io.StringIO()):
        profile.runcall(main, arguments)
    package = str(ROOT / "resperf")
    return {
        code
        for code in (entry.code for entry in profile.getstats())
        if isinstance(code, CodeType)
        and code.co_filename.startswith(package)
        and not code.co_name.startswith(MADE_BY_PYTHON)
        and CLASS_BODY not in code.co_names
    }


def main() -> int:
    words = sys.argv[1:]
    if words[:1] != [INSIDE]:
        with tempfile.TemporaryDirectory() as empty:
            places = {"XDG_CACHE_HOME": f"{empty}/cache", "RESPERF_HOME": f"{empty}/home"}
            command = [sys.executable, __file__, INSIDE, *words]
            environment = {**os.environ, **places, "PYTHONPATH": str(ROOT)}
            return subprocess.run(command, env=environment, check=False).returncode
    codes = entered(words[1:])
    files = Counter(str(Path(code.co_filename).relative_to(ROOT)) for code in codes)
    for file, count in files.most_common():
        print(f"{count:5d}  {file}")
    print(f"{len(codes)} functions in {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
