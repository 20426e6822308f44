"""Options that several commands share, and how they are written on the command line."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from resperf.cli._sections import COMMON, HOW, INTEGERS, NUMBERS, OUTPUT, WHAT, WHERE, WORDS, option
from resperf.errors import require
from resperf.files import write_whole
from resperf.heartbeat import Steps
from resperf.records import parse_json
from resperf.settings import COMPILED, LAYOUTS, OPTIMIZERS, PRECISIONS
from resperf.targets import local_class
from resperf.units import TIME_WORDS, parse_ms

_V = TypeVar("_V")
_SHAPE = re.compile(r"\d{1,18}(,\d{1,18})*|\d{1,18}(x\d{1,18})*")
PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


class _Positive(click.FloatRange):
    """A positive number, neither infinite nor NaN, which no comparison refuses."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a number; an option's default may be NaN."""
        number = float(super().convert(value, param, ctx))
        if isinstance(value, str) and not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


POSITIVE = _Positive(min=0, min_open=True)


def positive_integers(
    _ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]
) -> tuple[int, ...]:
    """Parse values of a repeated option: positive integers, alone or separated by commas."""
    numbers: list[int] = []
    for word in words:
        if not INTEGERS.fullmatch(word) or any(int(part) < 1 for part in word.split(",")):
            raise click.BadParameter(f"{word!r} must be an integer of at least 1, such as 8")
        numbers += [int(part) for part in word.split(",")]
    return tuple(numbers)


def _value(word: str, text: str, read: Callable[[str], _V], example: str) -> _V:
    """Read the value in a word; `read` raises ValueError where it is none."""
    try:
        return read(text)
    except ValueError as error:
        raise click.BadParameter(f"{word!r} must look like {example}") from error


def _by_name(read: Callable[[str], _V], example: str) -> Callable[..., dict[str, _V]]:
    """Return what parses a repeated option ``NAME=VALUE``."""

    def parse(
        _ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]
    ) -> dict[str, _V]:
        values: dict[str, _V] = {}
        for word in words:
            name, _, text = word.rpartition("=")
            if name in values:
                raise click.BadParameter(f"{name} is given twice; leave one out")
            values[name] = _value(word, text if name else "", read, example)
        return values

    return parse


def _dims(text: str) -> tuple[int, ...]:
    if not _SHAPE.fullmatch(text):
        raise ValueError(text)
    return tuple(int(number) for number in re.split("[,x]", text))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(n) if set(n) & set(".en") else int(n) for n in text.split(","))


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise ValueError(text)
    return int(text)


def latency_ms(_ctx: click.Context, _param: click.Parameter, word: str | None) -> float | None:
    """Parse a time such as ``10ms``."""
    return None if word is None else _value(word, word, parse_ms, f"10ms, {TIME_WORDS}")


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def numbers(*names: str, **settings: Any) -> Decorator:
    """Option of one or several positive integers: ``--batch 1 8 32``."""
    how = {"callback": positive_integers, **settings}
    return option(*names, spread=NUMBERS, multiple=True, metavar="N...", **how)


def words(*names: str, **settings: Any) -> Decorator:
    """Option of one or several words, behind the arguments: ``--device h100 a100``."""
    return option(*names, spread=WORDS, multiple=True, metavar="WORD...", **settings)


NETWORK: Decorator = click.argument("network", metavar="NETWORK", type=PATH)
DATASET: Decorator = click.argument("file", metavar="FILE.h5", type=PATH)
BATCH_HELP = "Batch size, one or several: --batch 1 8 32. The file's own by default."
BATCH: Decorator = numbers("--batch", "batches", section=COMMON, help=BATCH_HELP)
SHAPE: Decorator = option(
    "--shape",
    "shapes",
    section=COMMON,
    multiple=True,
    callback=_by_name(_dims, "input=1,3,640,640 (or 1x3x640x640)"),
    metavar="NAME=N,N,...",
    help="Shape of an input with free dimensions: --shape input=1,3,640,640. A pattern names "
    "several inputs: --shape 'past_*=1x12x128x64'. Or a dimension's length by its name, or a "
    "tensor's that depends on the data: --shape frames=400.",
)
VALUE: Decorator = option(
    "--value",
    "values",
    section=WHAT,
    multiple=True,
    callback=_by_name(_numbers, "orig_im_size=1080,1920"),
    metavar="NAME=V,V,...",
    help="Values of an input (or one for all) that decide shapes: --value orig_im_size=1080,1920.",
)
ASSUME: Decorator = option(
    "--assume",
    section=WHAT,
    multiple=True,
    callback=_by_name(_count, "boxes=100, a whole number of at least 1"),
    metavar="WHAT=N",
    help="How many an operator finds whose output depends on the data: boxes=100 "
    "(NonMaxSuppression), values=100 (NonZero, Compress, Unique). The prediction states it.",
)
CUSTOM: Decorator = option(
    "--custom",
    "custom_ms",
    section=WHAT,
    multiple=True,
    callback=_by_name(parse_ms, f"my.domain.MyOp=0.5ms, {TIME_WORDS}"),
    metavar="DOMAIN.OP=TIME",
    help="Time of one run of an operator that resperf has no layer for: "
    "--custom my.domain.MyOp=0.5ms (or us, s). The prediction states it.",
)
DEVICE: Decorator = option(
    "--device",
    section=COMMON,
    metavar="D",
    help="Device (cpu, h100, rtx4090, ...), or a bundle's name or folder; see `resperf devices`. "
    "`predict` also takes a TOML file of a card's facts. By default the bundle's device, else cpu.",
)
FRAMEWORK: Decorator = option(
    "--framework", section=WHERE, metavar="F", help="Framework, if the device has several."
)
BUNDLE: Decorator = option(
    "--bundle",
    section=COMMON,
    metavar="B",
    help="Bundle: its name, folder or device. Or a folder of bundles, which is searched first.",
)
SEED: Decorator = option(
    "--seed",
    section=HOW,
    type=click.IntRange(0, 2**31 - 1),  # what every library accepts
    default=0,
    show_default=True,
    metavar="S",
    help="Seed of everything random.",
)
ALL: Decorator = option("--all", "every", section=OUTPUT, is_flag=True, help="Show every layer.")
JSON: Decorator = option(
    "--json", "as_json", section=COMMON, is_flag=True, help="Write JSON to stdout."
)


def output(metavar: str, text: str, *, section: str = COMMON, **settings: Any) -> Decorator:
    """Option -o, the file or folder to write; `text` is its help."""
    return option(
        "-o", "--output", section=section, type=PATH, metavar=metavar, help=text, **settings
    )


def ray(text: str) -> Decorator:
    """Option --ray, whose value is the address of a cluster, or is left out."""
    return option(
        "--ray", section=WHERE, is_flag=False, flag_value="auto", metavar="[ADDRESS|local]",
        callback=lambda _context, _option, address: address and require("ray", "ray") and address,
        help=text,
    )  # fmt: skip


def paths(*names: str, text: str) -> Decorator:
    """Option of files or folders that may be repeated."""
    return option(
        *names, section=WHAT, multiple=True, type=PATH, metavar="PATH",
        help=f"{text} (repeatable).",
    )  # fmt: skip


def threads(text: str) -> Decorator:
    """Option --threads."""
    return option("--threads", section=HOW, type=COUNT, metavar="N", help=text)


PRECISION: Decorator = option(
    "--precision",
    section=COMMON,
    type=click.Choice(PRECISIONS),
    help="Precision of the run, if device and framework have it (errors list those that they "
    "have); amp is autocast to float16. The network's own types by default.",
)
_RUN_OPTIONS: tuple[Decorator, ...] = (
    threads("Number of threads of the framework; all cores by default."),
    PRECISION,
    option(
        "--layout",
        section=HOW,
        type=click.Choice(LAYOUTS),
        help="Memory layout of images; the framework's own by default.",
    ),
    option(
        "--compiled",
        section=HOW,
        type=click.Choice(COMPILED),
        help="Whether and by what the framework compiles; its own default otherwise.",
    ),
    option(
        "--training",
        "optimizer",
        section=HOW,
        type=click.Choice(tuple(OPTIMIZERS)),
        help="Measure training steps with this optimizer instead of inference.",
    ),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how layers and networks are run: `run_settings` reads them."""
    for decorator in reversed(_RUN_OPTIONS):
        command = decorator(command)
    return command


def run_settings(device: str | None, **given: Any) -> dict[str, Any]:
    """Turn the words of `run_options` and ``--device`` into keywords of a backend.

    Only what was given is passed on; a device only if it has a number, as ``cuda:1``.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    if device is not None and local_class(device) and ":" in device:
        settings["device"] = device.casefold()
    return settings


def seconds(default: float | None, text: str) -> Decorator:
    """Option --seconds, a measuring time."""
    return option(
        "--seconds",
        section=HOW,
        type=POSITIVE,
        default=default,
        show_default=True,
        metavar="S",
        help=text,
    )


def require_suffix(ctx: click.Context, param: click.Parameter, output: Path | None) -> Path | None:
    """Refuse an output of another kind than an option's metavar names: ``FILE.csv|json``."""
    kinds = str(param.metavar).partition(".")[2].split("|")
    if output is not None and output.suffix[1:] not in kinds:
        raise click.UsageError(f"-o {output} must end in .{' or .'.join(kinds)}", ctx)
    return output


def _page(ctx: click.Context, param: click.Parameter, output: Path | None) -> None:
    ctx.meta[_PAGE] = require_suffix(ctx, param, output)


_PAGE = "resperf.page"
PAGE: Decorator = output(
    "FILE.html", "Also write a page for a browser.", section=OUTPUT, callback=_page,
    expose_value=False,
)  # fmt: skip
"""`show` writes it."""


def show(
    as_json: bool,
    document: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    text: str,
    notes: Sequence[str] = (),
) -> None:
    """Print an answer as JSON, or as text and notes, which are on stderr; write its `PAGE`."""
    context = click.get_current_context(silent=True)
    if context is not None and (page := context.meta.get(_PAGE)):
        write_page(page, document)
    print(json_of(document) if as_json else text)
    show_notes(() if as_json else notes)


def write_page(output: Path, value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Write the answer of the command that runs as a page of its own."""
    from resperf.devices import device_facts
    from resperf.report.page import answer_page

    context = click.get_current_context()
    documents = [value] if isinstance(value, Mapping) else value
    facts = {name: device_facts(name) for one in documents if (name := one.get("device"))}
    limits = {name: of_device.limits for name, of_device in facts.items() if of_device}
    command = shlex.join(("resperf", *context.find_root().obj))
    answer = parse_json(json_of(value))
    write_whole(output, answer_page(str(context.info_name), answer, command, limits).encode())


def json_of(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Write a document, or a list of them, as JSON; each begins with the version of its keys."""
    from resperf.report.documents import json_text, versioned

    return json_text(versioned(value) if isinstance(value, Mapping) else [*map(versioned, value)])


def show_notes(notes: Sequence[str]) -> None:
    """Print notes on stderr, one per line."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


@contextmanager
def bar_of_steps(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Give a callback (done, total, name) that shows on stderr how many are done."""
    with closing(Steps(what)) as steps:
        yield steps.show
