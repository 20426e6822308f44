"""Broken networks: predicted or refused in one line, whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path


def test_broken_networks_are_predicted_or_refused_in_one_line(load_tool, tmp_path: Path) -> None:
    tool = load_tool("fuzz_networks")
    answers = set()
    # Each way of breaking comes up three times.
    for seed in range(3 * (len(tool.CHANGES) + 3)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (tmp_path / tool.OUTSIDE).write_bytes(b"\0" * 4096)
        done, path = tool.broken_file(seed, folder)
        answer = tool.outcome(path)
        assert not answer.startswith("wrong"), f"seed {seed}: {done}: {answer}"
        answers.add(answer)
    assert {"refused, refused", "predicted, lowered"} <= answers
