"""Broken datasets, bundles, campaigns, cards and exports: read or refused in one line."""

from __future__ import annotations

from pathlib import Path


def test_broken_files_are_read_or_refused_in_one_line(load_tool, tmp_path: Path) -> None:
    tool = load_tool("fuzz_files")
    answers = set()
    for seed in range(6 * len(tool.KINDS)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        done, broken = tool.broken_files(seed, folder)
        answer = tool.outcome(broken)
        assert not answer.startswith("wrong"), f"seed {seed}: {done}: {answer}"
        answers.add(answer)
    assert {"bundle: read, read", "card: refused", "exports: read"} <= answers
