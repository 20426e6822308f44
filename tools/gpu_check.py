"""Check a GPU machine in 20 minutes: what can be measured there, and how well predictions fit.

    python tools/gpu_check.py gpu_check --device cuda:0 --minutes 20

For each target that works there: conformance of its backend, a short campaign, training, predicted
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
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from resperf import __version__
from resperf.campaign.harvest import shipped_networks
from resperf.errors import ResperfError
from resperf.report.documents import json_text
from resperf.report.markdown import markdown_table
from resperf.report.tables import ms_cell, percent_cell
from resperf.targets import local_devices

COMMAND = (sys.executable, "-m", "resperf.cli.main")
NETWORKS = ("lenet5", "alexnet", "vgg16", "resnet50")
BATCHES = (1, 8, 64)
CAMPAIGNS = {True: "gpu-quick", False: "demo"}
"""Whether the device is an accelerator -> campaign."""
BENCH_SHARE, LEAST_BENCH_S = 0.45, 5.0
"""Of a target's time; the rest is for conformance, training, and runs of networks."""
ROUND_FACTOR = 3.0
"""How many times as long as its --seconds `measure` may take, as it starts and repeats rounds."""
RUN_SECONDS = 0.2, 6.0
"""Least and most time for the whole runs of one network at one batch size."""
PATIENCE_S = 120.0
"""What a step may take beyond its share before it is ended."""
GRACE_S = 30.0
"""What a step may take to end once it was asked to."""
OK, FAILED, SKIPPED, INTERRUPTED = "ok", "failed", "skipped", "interrupted"


@dataclass
class Step:
    """One command: how it ended, how long it took, why it failed."""

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
        self.options = {
            name: value if isinstance(value, int | float | str | None) else list(map(str, value))
            for name, value in vars(options).items()
            if name not in ("folder", "minutes")
        }
        self.minutes = float(options.minutes)
        self.steps: dict[str, Step] = {}
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self._resume()

    def _resume(self) -> None:
        """Keep what an earlier start finished."""
        path = self.folder / "results.json"
        if not path.exists():
            return
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            steps = [Step(**each) for each in earlier["steps"]]
            options = earlier["options"]
        except (ValueError, TypeError, KeyError) as error:
            raise ResperfError(f"{path} cannot be read ({error}); use another folder") from error
        if options != self.options:
            raise ResperfError(
                f"{self.folder} holds a check with other options ({options}); use another folder"
            )
        self.started = earlier["started"]
        self.steps = {each.name: each for each in steps if each.status == OK}

    @property
    def left_s(self) -> float:
        """Time that is left of the minutes, at least a tenth of them."""
        spent_s = sum(step.seconds for step in self.steps.values())
        return max(60 * self.minutes - spent_s, 6 * self.minutes)

    def run(self, name: str, *words: object, limit_s: float) -> Any:
        """Run a step unless it is done; return the JSON that it printed, or None."""
        if name in self.steps and self.steps[name].status == OK:
            print(f"{name}: done before", flush=True)
            return self.steps[name].answer
        step = Step(name, [*map(str, words), "--json"])
        self.steps[name] = step
        print(f"{name}: resperf {' '.join(step.words)}", flush=True)
        log = self.folder / "logs" / name.replace("/", "-")
        started = time.monotonic()
        try:
            status = run_command(step.words, log, limit_s)
        except KeyboardInterrupt:
            step.status, step.reason = INTERRUPTED, "interrupted"
            raise
        else:
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
        documents = {
            "results.json": json_text(self.document()), "report.md": report(self.document()),
        }  # fmt: skip
        for name, text in documents.items():
            partial = self.folder / f".{name}.tmp"
            partial.write_text(f"{text}\n", encoding="utf-8")
            os.replace(partial, self.folder / name)

    def document(self) -> dict[str, Any]:
        """Return everything that the report shows."""
        return {
            "resperf": __version__,
            "started": self.started,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "minutes": self.minutes,
            "options": self.options,
            "comparisons": sorted(comparisons(self.steps), key=_place),
            "steps": [asdict(step) for step in self.steps.values()],
        }


def run_command(words: Sequence[str], log: Path, limit_s: float) -> int:
    """Run a `resperf` command; return its exit status, 124 if its time was over.

    Ctrl-C is passed on once, so that a campaign ends cleanly; what it started is ended with it.
    """
    with (
        log.with_suffix(".out").open("w", encoding="utf-8") as out,
        log.with_suffix(".err").open("w", encoding="utf-8") as err,
        subprocess.Popen(
            [*COMMAND, *words], stdout=out, stderr=err, stdin=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            return 124
        except KeyboardInterrupt:
            end(process)
            raise


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a step to end, then end it and all that it started."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def reason(status: int, log: Path, limit_s: float) -> str:
    """Say in one line why a step failed."""
    if status == 124:
        return f"no end within {limit_s:.0f} s"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}; see {log.with_suffix('.err').name}"
    text = log.with_suffix(".err").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("resperf: error: ")] or lines
    return said[-1].removeprefix("resperf: error: ") if said else f"exit status {status}"


def check(check: Check, options: argparse.Namespace) -> None:
    """Run all steps."""
    device = ["--device", options.device]
    found = check.run("doctor", "doctor", *device, limit_s=300)
    states = [] if found is None else found["targets"]
    wanted = [each for each in states if not options.framework
              or each["target"].partition("/")[0] in options.framework]  # fmt: skip
    usable = [each["target"] for each in wanted if each["measurable"] != "no"]
    for each in wanted:
        if each["measurable"] == "no":
            check.skip(each["target"], each["why"])
    for place, target in enumerate(usable):
        try:
            check_target(check, options, target, check.left_s / (len(usable) - place))
        except (KeyError, TypeError, ValueError) as error:
            # An answer that is not as expected costs its target, not the rest.
            check.skip(f"{target}/rest", f"{type(error).__name__}: {error}")
    check.write()


def check_target(check: Check, options: argparse.Namespace, target: str, share_s: float) -> None:
    """Run all steps of a target within about its share of the time."""
    framework = target.partition("/")[0]
    here = ["--device", options.device, "--framework", framework]
    folder = check.folder / target.replace("/", "-")
    folder.mkdir(exist_ok=True)
    dataset, bundle = folder / "layers.h5", folder / "bundle"
    started = time.monotonic()
    networks = [Path(each) for each in options.networks]
    check.run(
        f"{target}/conformance", "doctor", "--device", options.device, "--conformance", target,
        limit_s=share_s / 2 + PATIENCE_S,
    )  # fmt: skip
    bench_s = max(BENCH_SHARE * share_s, LEAST_BENCH_S)
    exclude = [word for path in networks if path.is_file() for word in ("--exclude", path)]
    measured = check.run(
        f"{target}/bench", "bench", options.campaign, *here, "-o", dataset,
        "--hours", f"{bench_s / 3600:.4f}", *exclude, limit_s=2 * bench_s + PATIENCE_S,
    )  # fmt: skip
    if (measured or {}).get("statuses", {}).get("ok"):
        check.run(
            f"{target}/train", "train", dataset, "-o", bundle, "--method", options.method,
            limit_s=share_s / 2 + PATIENCE_S,
        )  # fmt: skip
    else:
        check.skip(f"{target}/train", "the campaign has no rows")
    trained = check.steps[f"{target}/train"].status == OK
    for path in networks:
        if trained:
            check.run(
                f"{target}/predict-{path.stem}", "predict", path, "--bundle", bundle,
                "--batch", *options.batches, limit_s=PATIENCE_S,
            )  # fmt: skip
        else:
            check.skip(f"{target}/predict-{path.stem}", "no bundle was trained")
    runs = [(path, batch) for batch in sorted(options.batches) for path in networks]
    left_s = share_s - (time.monotonic() - started)
    seconds = min(max(left_s / (ROUND_FACTOR * len(runs)), RUN_SECONDS[0]), RUN_SECONDS[1])
    for path, batch in runs:
        name = f"{target}/measure-{path.stem}-{batch}"
        if time.monotonic() - started > share_s + PATIENCE_S:
            check.skip(name, "no time was left; the same command goes on")
            continue
        check.run(
            name, "measure", path, *here, "--batch", batch, "-o", dataset.with_name("runs.h5"),
            "--seconds", f"{seconds:.2f}", "--no-layers",
            limit_s=ROUND_FACTOR * seconds + PATIENCE_S,
        )  # fmt: skip


def comparisons(steps: Mapping[str, Step]) -> Iterator[dict[str, Any]]:
    """Join what was predicted and measured for each network and batch size.

    `phases_ms` is the sum of the three phases' medians, `whole_ms` the median of whole runs.
    """
    for name, step in steps.items():
        target, _, word = name.rpartition("/")
        if not word.startswith("measure-"):
            continue
        network = word.removeprefix("measure-").rpartition("-")[0]
        predicted = {
            each["batch"]: each for each in documents(steps.get(f"{target}/predict-{network}"))
        }
        for each in documents(step):
            other = predicted.get(each["batch"], {})
            yield {
                "target": target,
                "network": network,
                "batch": each["batch"],
                "predicted_ms": number(other.get("total_ms")),
                "skipped": len(other.get("skipped", ())),
                "phases": each["phases"],
                "phases_ms": number(each["total_ms"]),
                "whole_ms": number(each["percentiles_ms"]["p50"]),
                "warnings": each["warnings"],
            }


def _place(each: Mapping[str, Any]) -> tuple[Any, ...]:
    return each["target"], each["network"], each["batch"]


def documents(step: Step | None) -> list[dict[str, Any]]:
    """Return the documents of a step that answered with one or several."""
    answer = None if step is None else step.answer
    return answer if isinstance(answer, list) else [answer] if isinstance(answer, dict) else []


def number(value: Any) -> float:
    return math.nan if value is None else float(value)


def report(found: Mapping[str, Any]) -> str:
    """Write everything as Markdown."""
    steps = {each["name"]: Step(**each) for each in found["steps"]}
    options = found["options"]
    parts = [
        f"# resperf on {options['device']}",
        f"resperf {found['resperf']}, from {found['started']} to {found['written']}, "
        f"{found['minutes']:g} minutes asked for, campaign {options['campaign']}, method "
        f"{options['method']}.",
        *machine(steps.get("doctor")),
    ]
    targets = dict.fromkeys(each["target"] for each in found["comparisons"])
    names = {name.rpartition("/")[0] for name in steps if name.count("/") == 2}
    for target in dict.fromkeys([*targets, *sorted(names)]):
        own = [each for each in found["comparisons"] if each["target"] == target]
        parts += [f"## {target}", *of_target(target, steps, own)]
    missing = [
        [step.name, step.status, step.reason] for step in steps.values() if step.status != OK
    ]
    parts.append("## What could not be run")
    parts.append(left_aligned(("step", "status", "reason"), missing) if missing else "Nothing.")
    parts.append("## Steps")
    rows = [[step.name, step.status, f"{step.seconds:.1f}"] for step in steps.values()]
    parts.append(left_aligned(("step", "status", "seconds"), rows))
    return "\n\n".join(parts)


def left_aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table of text; a bar inside a cell would end it."""
    cells = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    return markdown_table(headings, cells).replace("---:", "---")


def machine(doctor: Step | None) -> Iterator[str]:
    """Say what the doctor said of devices, frameworks and targets."""
    if doctor is None or not isinstance(doctor.answer, dict):
        return
    said = doctor.answer
    host = said["host"]
    yield "## Machine"
    lines = [
        f"{host['processor']}, {host['cores']} cores, {host['memory_bytes'] / 2**30:.0f} GiB",
        *map(card, said["gpus"]),
    ]
    if said["no_gpu"]:
        lines.append(said["no_gpu"])
    for each in said["frameworks"]:
        versions = ", ".join(f"{name} {version}" for name, version in each["packages"].items())
        facts = each["facts"] or {"notes": [], "cuda": ""}
        built = [f"built for CUDA {facts['cuda']}"] * bool(facts["cuda"])
        told = [versions or "no package installed", *built, *facts["notes"]]
        lines.append(f"{each['name']}: {'; '.join(filter(None, (*told, each['problem'])))}")
    yield "\n".join(f"- {line}" for line in lines)
    rows = [[each["target"], each["measurable"], each["why"]] for each in said["targets"]]
    yield left_aligned(("target", "can be measured", "why"), rows)
    if said["advice"]:
        yield "What could be improved:\n\n" + "\n".join(f"- {line}" for line in said["advice"])


def card(gpu: Mapping[str, Any]) -> str:
    """Describe a GPU; what the driver does not say is unknown."""
    facts = {name: "unknown" if value is None else value for name, value in gpu["facts"].items()}
    return (
        f"{gpu['word']}: {facts['name']}, driver {facts['driver']}, CUDA up to "
        f"{gpu['cuda'] or 'unknown'}, MIG {facts['mig']}, ECC {facts['ecc']}, persistence mode "
        f"{facts['persistence']}"
    )


def of_target(
    target: str, steps: Mapping[str, Step], compared: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Say how each step of a target ended, and compare networks."""
    checked = steps.get(f"{target}/conformance")
    if checked is not None and isinstance(checked.answer, dict):
        yield conformance(checked.answer)
    bench = steps.get(f"{target}/bench")
    if bench is not None and isinstance(bench.answer, dict):
        rows = ", ".join(f"{count} {status}" for status, count in bench.answer["statuses"].items())
        yield (
            f"Campaign: {rows or 'no rows'}; {bench.answer['layers_per_second']:.1f} rows/s; "
            f"{bench.answer['doubtful']} rows remain noisy."
        )
    if not compared:
        return
    headings = (
        "network", "batch", "preprocess ms", "execution ms", "postprocess ms", "sum of phases ms",
        "whole run ms", "sum against whole", "predicted ms", "predicted against whole",
    )  # fmt: skip
    yield markdown_table(headings, [row_of(each) for each in compared])
    sums = [abs(share(each, "phases_ms")) for each in compared]
    predicted = [
        abs(share(each, "predicted_ms"))
        for each in compared
        if math.isfinite(number(each["predicted_ms"])) and not each["skipped"]
    ]
    error = percent_cell(fmean(predicted)) if predicted else "unknown"
    yield (
        f"Mean absolute difference: sum of phases {percent_cell(fmean(sums))}, predicted {error} "
        f"({len(predicted)} of {len(compared)} predicted completely). Times are medians; 'whole "
        "run' is from host arrays to host arrays."
    )
    warned = {warning for each in compared for warning in each["warnings"]}
    if warned:
        yield "Warnings:\n\n" + "\n".join(f"- {each}" for each in sorted(warned))


def conformance(answer: Mapping[str, Any]) -> str:
    """Count verdicts, and list what failed or is doubtful."""
    findings = answer["findings"]
    verdicts = dict.fromkeys(each["verdict"] for each in findings)
    counts = ", ".join(
        f"{sum(each['verdict'] == verdict for each in findings)} {verdict}" for verdict in verdicts
    )
    lines = [
        f"- {each['rule']} {each['subject']}: {each['verdict']}: {each['detail']}"
        for each in findings
        if each["verdict"] in (FAILED, "doubtful")
    ]
    keeps = "keeps" if answer["conforms"] else "does not keep"
    return "\n".join([f"Conformance: the backend {keeps} its contract ({counts}).", "", *lines])


def share(each: Mapping[str, Any], name: str) -> float:
    """Return the relative difference of a time from that of whole runs."""
    return number(each[name]) / number(each["whole_ms"]) - 1


def row_of(each: Mapping[str, Any]) -> list[str]:
    phases = [number(each["phases"][f"{name}_ms"])
              for name in ("preprocess", "execution", "postprocess")]  # fmt: skip
    partly = f" (without {each['skipped']} operators)" if each["skipped"] else ""
    return [
        each["network"],
        str(each["batch"]),
        *map(ms_cell, phases),
        ms_cell(number(each["phases_ms"])),
        ms_cell(number(each["whole_ms"])),
        percent_cell(share(each, "phases_ms"), signed=True),
        ms_cell(number(each["predicted_ms"])) + partly,
        percent_cell(share(each, "predicted_ms"), signed=True),
    ]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", help="where results go; the same folder resumes")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=20.0, help="default: %(default)g")
    parser.add_argument("--framework", action="append", help="only this one (repeatable)")
    parser.add_argument("--campaign", help="default: gpu-quick on accelerators, else demo")
    parser.add_argument("--method", default="baseline", help="of training; default: %(default)s")
    parser.add_argument("--networks", nargs="+", help=f"ONNX files; default: {' '.join(NETWORKS)}")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    options = parser.parse_args(arguments)
    options.campaign = options.campaign or CAMPAIGNS[local_devices(options.device) is not None]
    options.networks = options.networks or shipped_networks(NETWORKS)
    return options


def _interrupted(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the machine; return 0, 2 for wrong usage or no answer of doctor, 130 after Ctrl-C."""
    options = parsed(arguments)
    for each in (signal.SIGTERM, signal.SIGINT):  # which shells may ignore in the background
        signal.signal(each, _interrupted)
    try:
        started = Check(options)
    except (ResperfError, OSError) as error:
        print(f"gpu_check: error: {error}", file=sys.stderr)
        return 2
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
