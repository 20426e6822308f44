"""Programs of torch.export in .pt2 files, loaded without running code of theirs.

`torch.export.load` unpickles, loads compiled libraries, and evaluates names and expressions of the
file. So everything that it would run is refused first.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from resperf.errors import NetworkError, ResperfError, require, silent_stderr

_RECORDS = (
    r"models/model\.json|data/sample_inputs/model\.pt|extra/.*|archive_\w+|byteorder|\.data/\w+"
    r"|(\.format_)?version|\.storage_alignment"
    r"|data/(weights|constants)/(model_\w+_config\.json|(weight|tensor)_\d+)"
)
_TEXTS = {
    "name": r"[\w.]*",
    "target": r"torch\.ops(\.(?!__)\w+){2,3}|torch\.ops\.aten\.__i?(and|or|xor|[lr]shift)__\.\w+"
    r"|torch\.sym_\w+|math\.\w+|_operator\.(?!call|\w*getter|\w*caller)\w+"
    r"|(?!torch|math|_operator)[\w.]*",
    "expr_str": r"(Symbol\('[suz]\w*', |(positive|nonnegative|integer|real)=True|[A-Z][A-Za-z]*\("
    r"|[suz.](?=\d)|True|False|[\d\s()+\-*/,<>=&|~])*",
}
"""Key in a program's JSON -> what its text may be, since PyTorch runs it."""


def load_program(path: Path) -> Any:
    """Load a program that `torch.export.save` wrote.

    Raises
    ------
    NetworkError
        If the file is damaged, of another kind, or holds code.
    MissingExtraError
        If PyTorch or a package of the program is not installed.
    """
    from unittest.mock import patch

    torch = require("torch", "torch")
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        text = reader.get_record("models/model.json")
        for name in reader.get_all_records():
            _refuse_other(name, _RECORDS)
        json.loads(text, object_hook=_checked)
        # It may return classes of transformers, which PyTorch has to be told of.
        for module in set(re.findall(rb"transformers(?:\.\w+)*\.modeling_\w+", text)):
            require(module.decode(), "transformers")
        # Loads tensors alone, even where PyTorch asks for any object.
        with silent_stderr(), patch.dict(os.environ, TORCH_FORCE_WEIGHTS_ONLY_LOAD="1"):
            return torch.export.load(path)
    except ResperfError:
        raise
    except Exception as error:  # of any kind, in damaged files
        raise NetworkError(
            f"{path} is damaged, of another version of PyTorch, or no program of torch.export; "
            "write it again with torch.export.save"
        ) from error


def _checked(values: dict[str, Any]) -> None:
    for key in _TEXTS.keys() & values.keys():
        if isinstance(values[key], str):
            _refuse_other(values[key], _TEXTS[key])


def _refuse_other(text: str, allowed: str) -> None:
    if not re.fullmatch(allowed, text):
        raise NetworkError(f"the .pt2 file holds more than tensors and operators: {text[:80]!r}")
