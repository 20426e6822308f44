"""Check a GPU machine in 20 minutes: what can be measured there, and how well predictions fit.

    python tools/benchmarks/gpu_check.py gpu_check --device cuda:0 --minutes 20

For each target that works there: a short campaign, training, predicted
and measured times of LeNet, AlexNet, VGG16 and ResNet-50 at batch 1, 8 and 64. Every step is a
`resperf` command in a process of its own, so that none ends the check. The folder has `report.md`,
`results.json`, a log of each step, datasets and bundles; both files are written after each step.
The same command goes on where an earlier one ended, and repeats what failed. `--device cpu` works
too.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from resperf import __version__
from resperf.campaign.networks import shipped_networks
from resperf.files import write_whole
from resperf.report.documents import json_text
from resperf.report.markdown import markdown_table
from resperf.report.tables import ms_cell, percent_cell
from resperf.targets import local_devices

COMMAND = (sys.executable, "-m", "resperf")
NETWORKS = ("lenet5", "alexnet", "vgg16", "resnet50")
BATCHES = (1, 8, 64)
BENCH_SHARE, LEAST_BENCH_S = 0.45, 5.0
"""Of a target's time; the rest is for training and runs of networks."""
ROUND_FACTOR = 3.0
"""How many times as long as its --seconds `measure` may take, as it starts and repeats rounds."""
RUN_SECONDS = 0.2, 6.0
"""Least and most time for the whole runs of one network at one batch size."""
PATIENCE_S = 120.0
"""What a step may take beyond its share before it is ended."""
OK, FAILED, SKIPPED, INTERRUPTED = "ok", "failed", "skipped", "interrupted"


@dataclass
class Step:
    """One command: how it ended, how long it took, why it failed, what it printed as JSON."""

    name: str
    words: list[str] = field(default_factory=list)
    status: str = SKIPPED
    seconds: float = 0.0
    reason: str = ""
    answer: Any = None


class Check:
    """A folder of results, and the steps that were run in it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = Path(options.folder)
        self.options = {name: str(value) for name, value in vars(options).items()
                        if name not in ("folder", "minutes")}  # fmt: skip
        self.minutes = float(options.minutes)
        self.steps: dict[str, Step] = {}
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        path = self.folder / "results.json"
        if path.exists():
            earlier = json.loads(path.read_text(encoding="utf-8"))
            if earlier["options"] != self.options:
                raise SystemExit(
                    f"{path} holds a check with other options ({earlier['options']}); use another "
                    "folder"
                )
            steps = [Step(**values) for values in earlier["steps"]]
            self.steps = {step.name: step for step in steps if step.status == OK}

    @property
    def left_s(self) -> float:
        """Time that is left of the minutes, at least a tenth of them."""
        spent_s = sum(step.seconds for step in self.steps.values())
        return max(60 * self.minutes - spent_s, 6 * self.minutes)

    def run(self, name: str, *words: object, limit_s: float, unless: str = "") -> Any:
        """Run a step unless it is done, or has a reason not to; return its JSON, or None."""
        if unless:
            return self.skip(name, unless)
        if name in self.steps and self.steps[name].status == OK:
            print(f"{name}: done before", flush=True)
            return self.steps[name].answer
        step = self.steps[name] = Step(name, [*map(str, words), "--json"])
        print(f"{name}: resperf {' '.join(step.words)}", flush=True)
        log = self.folder / "logs" / name.replace("/", "-")
        started = time.monotonic()
        step.status, step.reason = INTERRUPTED, "interrupted"
        try:
            status = run_command(step.words, log, limit_s)
            step.status = FAILED if status else OK
            step.reason = reason(status, log, limit_s) if status else ""
        finally:
            step.seconds = time.monotonic() - started
            with suppress(OSError, ValueError):
                step.answer = json.loads(log.with_suffix(".out").read_text(encoding="utf-8"))
            self.write()
        if step.status == FAILED:
            print(f"{name}: {step.reason}", flush=True)
        return step.answer

    def skip(self, name: str, why: str) -> None:
        """Write down a step that cannot be run."""
        self.steps[name] = Step(name, status=SKIPPED, reason=why)
        print(f"{name}: not run: {why}", flush=True)

    def write(self) -> None:
        """Write both files, whole or not at all."""
        steps = [asdict(step) for step in self.steps.values()]
        text = json_text({"resperf": __version__, "options": self.options, "steps": steps})
        write_whole(self.folder / "results.json", f"{text}\n".encode())
        write_whole(self.folder / "report.md", f"{report(self)}\n".encode())


def run_command(words: Sequence[str], log: Path, limit_s: float) -> int:
    """Run a `resperf` command; return its exit status, 124 if its time was over.

    A campaign that is ended loses no finished row.
    """
    with (
        log.with_suffix(".out").open("w", encoding="utf-8") as out,
        log.with_suffix(".err").open("w", encoding="utf-8") as err,
        suppress(subprocess.TimeoutExpired),
    ):
        return subprocess.run(
            [*COMMAND, *words], stdout=out, stderr=err, stdin=subprocess.DEVNULL, timeout=limit_s,
            check=False,
        ).returncode  # fmt: skip
    return 124


def reason(status: int, log: Path, limit_s: float) -> str:
    """Say in one line why a step failed."""
    if status == 124:
        return f"no end within {limit_s:.0f} s"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}; see {log.with_suffix('.err').name}"
    text = log.with_suffix(".err").read_text(encoding="utf-8", errors="replace")
    last = text.strip().rpartition("\n")[2]
    return last.removeprefix("resperf: error: ") or f"exit status {status}"


def check(check: Check, options: argparse.Namespace) -> None:
    """Run all steps."""
    answer = check.run("doctor", "doctor", "--device", options.device, limit_s=300)
    usable = []
    for state in answer["targets"] if answer else ():
        if state["measurable"] == "no":
            check.skip(state["target"], state["why"])
        else:
            usable.append(state["target"])
    for index, target in enumerate(usable):
        try:
            check_target(check, options, target, check.left_s / (len(usable) - index))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # An answer that is not as expected costs its target, not the rest.
            check.skip(f"{target}/rest", f"{type(error).__name__}: {error}")
    check.write()


def check_target(check: Check, options: argparse.Namespace, target: str, share_s: float) -> None:
    """Run all steps of a target within about its share of the time."""
    here = ["--device", options.device, "--framework", target.partition("/")[0]]
    folder = check.folder / target.replace("/", "-")
    folder.mkdir(exist_ok=True)
    dataset, bundle = folder / "layers.h5", folder / "bundle"
    started = time.monotonic()
    networks = [Path(network) for network in options.networks]
    half_s = share_s / 2 + PATIENCE_S
    bench_s = max(BENCH_SHARE * share_s, LEAST_BENCH_S)
    exclude = [word for path in networks if path.is_file() for word in ("--exclude", path)]
    hours = ("--hours", f"{bench_s / 3600:.4f}")
    bench = ("bench", options.campaign, *here, "-o", dataset, *hours, *exclude)
    measured = check.run(f"{target}/bench", *bench, limit_s=2 * bench_s + PATIENCE_S)
    lacks = "" if (measured or {}).get("statuses", {}).get("ok") else "the campaign has no rows"
    train = ("train", dataset, "-o", bundle, "--method", options.method)
    check.run(f"{target}/train", *train, limit_s=half_s, unless=lacks)
    lacks = "" if check.steps[f"{target}/train"].status == OK else "no bundle was trained"
    for path in networks:
        predict = ("predict", path, "--bundle", bundle, "--batch", *options.batches)
        name = f"{target}/predict-{path.stem}"
        check.run(name, *predict, limit_s=PATIENCE_S, unless=lacks)
    runs = [(path, batch) for batch in sorted(options.batches) for path in networks]
    left_s = share_s - (time.monotonic() - started)
    seconds = min(max(left_s / (ROUND_FACTOR * len(runs)), RUN_SECONDS[0]), RUN_SECONDS[1])
    for path, batch in runs:
        name = f"{target}/measure-{path.stem}-{batch}"
        is_late = time.monotonic() - started > share_s + PATIENCE_S
        check.run(
            name, "measure", path, *here, "--batch", batch, "-o", folder / "runs.h5", "--seconds",
            f"{seconds:.2f}", "--no-layers", limit_s=ROUND_FACTOR * seconds + PATIENCE_S,
            unless="no time was left; the same command goes on" * is_late,
        )  # fmt: skip


def comparisons(steps: Mapping[str, Step]) -> Iterator[list[str]]:
    """Yield a row per network and batch size: phases, whole runs and prediction, medians in ms."""
    for name, step in steps.items():
        target, _, word = name.rpartition("/")
        network = word.removeprefix("measure-").rpartition("-")[0]
        predictions = steps.get(f"{target}/predict-{network}", Step("")).answer or ()
        for run in (step.answer or ()) if word.startswith("measure-") else ():
            own = [other for other in predictions if other["batch"] == run["batch"]]
            phases_ms, whole_ms = run["total_ms"], run["percentiles_ms"]["p50"]
            predicted_ms = own[0]["total_ms"] if own else math.nan
            lacking = len(own[0]["skipped"]) if own else 0
            partly = f" (without {lacking} operators)" if lacking else ""
            yield [
                target, network, str(run["batch"]), ms_cell(phases_ms), ms_cell(whole_ms),
                percent_cell(phases_ms / whole_ms - 1, signed=True), ms_cell(predicted_ms) + partly,
                percent_cell(predicted_ms / whole_ms - 1, signed=True), "; ".join(run["warnings"]),
            ]  # fmt: skip


def report(check: Check) -> str:
    """Write everything as Markdown."""

    def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        # A bar inside a cell would end it.
        cells = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
        return markdown_table(headings, cells) if rows else "Nothing."

    steps = check.steps.values()
    parts = [f"# resperf {__version__} on {check.options['device']}",
             ", ".join(f"{name} {value}" for name, value in check.options.items())]  # fmt: skip
    doctor = check.steps.get("doctor")
    if doctor is not None and doctor.answer:
        said = doctor.answer
        facts = [said["host"], *said["gpus"], *said["frameworks"]]
        lines = [f"- {json.dumps(fact)}" for fact in facts]
        parts += ["## Machine", "\n".join(lines + [f"- {hint}" for hint in said["advice"]])]
    parts += ["## Networks", "Times are medians; a whole run is from host arrays to host arrays."]
    headings = ("target", "network", "batch", "sum of phases ms", "whole run ms", "sum against "
                "whole", "predicted ms", "predicted against whole", "warnings")  # fmt: skip
    parts.append(table(headings, list(comparisons(check.steps))))
    missing = [[step.name, step.status, step.reason] for step in steps if step.status != OK]
    parts += ["## What could not be run", table(("step", "status", "reason"), missing)]
    rows = [[step.name, step.status, f"{step.seconds:.1f}"] for step in steps]
    return "\n\n".join([*parts, "## Steps", table(("step", "status", "seconds"), rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the machine; return 0, 2 for no answer of doctor, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", help="where results go; the same folder resumes")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=20.0, help="default: %(default)g")
    parser.add_argument("--campaign", help="default: gpu-quick on accelerators, else demo")
    parser.add_argument("--method", default="baseline", help="of training; default: %(default)s")
    parser.add_argument("--networks", nargs="+", help=f"ONNX files; default: {' '.join(NETWORKS)}")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    options = parser.parse_args(arguments)
    if options.campaign is None:
        options.campaign = "gpu-quick" if local_devices(options.device) is not None else "demo"
    options.networks = options.networks or shipped_networks(NETWORKS)
    for number in (signal.SIGTERM, signal.SIGINT):  # which shells may ignore in the background
        signal.signal(number, signal.default_int_handler)
    started = Check(options)
    try:
        check(started, options)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    finally:
        print(f"report: {started.folder / 'report.md'}", flush=True)
    return 2 if started.steps["doctor"].status == FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
