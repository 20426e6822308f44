"""Where a bundle comes from, as plain JSON values: enough to rebuild it, or to say why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resperf._version import __version__
from resperf.targets import versions_of

UNKNOWN = "unknown"

PACKAGES = (
    "numpy", "scipy", "onnx", "onnxruntime", "tensorflow", "tensorflow-cpu", "keras", "lightgbm",
    "xgboost", "xgboost-cpu", "scikit-learn",
)  # fmt: skip
"""Packages on which trained predictors depend."""


def provenance(
    datasets: Sequence[Mapping[str, Any]], *, seeds: Mapping[str, int], excluded: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe a bundle that is being trained now.

    Parameters
    ----------
    datasets : sequence of mapping
        The training data, each with ``name``, ``checksum``, ``campaign``, ``seed``, ``created``,
        ``versions``, ``merged`` (the pieces of a merged file) and ``source`` (of an import).
    seeds : mapping of str to int
    excluded : mapping
        What was left out on purpose.
    """
    return {
        "datasets": [dict(dataset) for dataset in datasets],
        "seeds": dict(seeds),
        "excluded": dict(excluded),
        "packages": versions_of(PACKAGES),
        "resperf": __version__,
        "commit": source_commit(),
        "changes": [],
        "rebuildable": _rebuildable(datasets),
    }


def changed(before: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return the provenance after a later change, with its date and the reason."""
    earlier = before["changes"]
    changes = [{"date": UNKNOWN, "reason": UNKNOWN}] if earlier == UNKNOWN else list(earlier)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {**before, "changes": [*changes, {"date": now, "reason": reason}]}


def merged(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the provenance of a bundle merged from others, with theirs."""
    answers = {str(piece["rebuildable"]["answer"]) for piece in pieces}
    answer = next((candidate for candidate in ("no", UNKNOWN) if candidate in answers), "yes")
    return {
        "datasets": [dataset for piece in pieces for dataset in piece["datasets"]],
        "resperf": __version__,
        "commit": source_commit(),
        "changes": [],
        "rebuildable": {"answer": answer, "why": "as its merged pieces say"},
        "pieces": [dict(piece) for piece in pieces],
    }


def source_commit() -> str:
    """Return the commit of the running checkout, with ``-dirty`` if it has changes.

    ``"unknown"`` for an installed package.
    """
    # Only training needs it.
    import subprocess

    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return UNKNOWN
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN


def _rebuildable(datasets: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Say whether a third person can rebuild the bundle."""
    private = [
        str(dataset["name"])
        for dataset in datasets
        if not dataset.get("source", {}).get("citation")
    ]
    if private:
        return {
            "answer": "no",
            "why": f"{', '.join(private)} has no published source; rebuilding needs a file with "
            "the same checksum",
        }
    return {"answer": "yes", "why": "from the published files that its datasets cite"}
