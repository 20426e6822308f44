"""From drawn values to the fields of a layer: constraints between the fields of each kind.

A word is a field's name or a shorthand in a campaign's file, such as ``size`` for height and width.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from resperf.campaign.laws import Law
from resperf.layers import OPERATOR_KINDS, Layer, kind_of
from resperf.layers._window import WindowLayer

Words = dict[str, Any]


def draw_words(made: type[Layer], laws: Mapping[str, Law], source: random.Random) -> Words:
    """Draw a value for every word; a field's own law overrides its shorthand's."""
    words: Words = {}
    for word, law in sorted(laws.items(), key=lambda item: item[0] not in made.aliases):
        value = law.draw(source)
        fields = made.aliases.get(word, (word,))
        same = law.same_share >= 1 or source.random() < law.same_share
        for index, field in enumerate(fields):
            words[field] = value if same or index == 0 else law.draw(source)
    return words


def layer_fields(kind: str, words: Words, source: random.Random) -> dict[str, Any]:
    """Turn drawn words into the fields of a layer of this kind."""
    if kind in OPERATOR_KINDS:
        return OPERATOR_KINDS[kind].fitting(words, source)
    shaper = _SHAPERS.get(kind)
    return words if shaper is None else shaper(words, source)


def is_runnable(layer: Layer) -> bool:
    """Whether all frameworks accept such a layer.

    A pooling window must overlap the image: ONNX requires pads smaller than the kernel.
    """
    if layer.kind != "pool":
        return True
    fields = layer.fields()
    return all(
        int(fields[f"pad_{side}"]) < int(fields[f"kernel_{axis}"])
        for axis, sides in (("height", ("top", "bottom")), ("width", ("left", "right")))
        for side in sides
    )


def pad_fields(padding: str, words: Mapping[str, Any], source: random.Random) -> dict[str, int]:
    """Return the four pads of a padding by name.

    ``symmetric`` is half the window on every side, as is usual in PyTorch; ``explicit`` draws every
    side independently.
    """
    if padding == "same":
        return WindowLayer.same_padding(words)
    pads = {}
    for axis, sides in (("height", ("top", "bottom")), ("width", ("left", "right"))):
        reach = (int(words[f"kernel_{axis}"]) - 1) * int(words.get(f"dilation_{axis}", 1))
        for side in sides:
            drawn = int(source.random() * (reach + 1)) if padding == "explicit" else 0
            pads[f"pad_{side}"] = reach // 2 if padding == "symmetric" else drawn
    return pads


def _window(words: Words, source: random.Random) -> dict[str, Any]:
    """Convolution: groups divide the channels, and a named padding becomes pads."""
    fields = dict(words)
    groups = fields.get("groups", 1)
    if groups == "depthwise":
        fields["groups"] = fields["channels_out"] = fields["channels_in"]
    elif groups != 1:
        for side in ("channels_in", "channels_out"):
            fields[side] = max(1, round(fields[side] / groups)) * groups
    if "padding" in fields:
        fields |= pad_fields(str(fields.pop("padding")), fields, source)
    return fields


def _pool(words: Words, source: random.Random) -> dict[str, Any]:
    """Pooling: a global one has a window as large as the image."""
    fields = dict(words)
    if fields.get("whole_image"):
        fields.pop("padding", None)
        fields |= {"kernel_height": fields["height"], "kernel_width": fields["width"]}
        fields |= {f"{word}_{axis}": 1 for word in ("stride", "dilation") for axis in _AXES}
        return fields | {"ceil_mode": False, "count_include_pad": False}
    if "padding" in fields:
        fields |= pad_fields(str(fields.pop("padding")), fields, source)
    if fields.get("mode", "max") == "max":
        fields["count_include_pad"] = False
    return fields


def _reorder(words: Words, source: random.Random) -> dict[str, Any]:
    """Re-layout: ``relayout = "nchw>nchwc16"`` gives the layouts of input and output."""
    del source
    fields = dict(words)
    if "relayout" in fields:
        fields["layout"], _, fields["layout_out"] = str(fields.pop("relayout")).partition(">")
    return fields


_AXES = ("height", "width")
_SHAPERS: Mapping[str, Callable[[Words, random.Random], dict[str, Any]]] = {
    "conv": _window,
    "pool": _pool,
    "reorder": _reorder,
}


def change_window(layer: Layer, changes: Words) -> dict[str, Any]:
    """Change size, kernel or stride of a convolution or pooling, but not its style of padding.

    SAME padding stays SAME, half the window stays half the window. Other pads stay where they are
    smaller than the window.
    """
    made = kind_of(layer.kind)
    old = layer.fields()
    fields: dict[str, Any] = {**old, **changes}
    if fields.get("whole_image"):
        fields |= {"kernel_height": fields["height"], "kernel_width": fields["width"]}
    assert issubclass(made, WindowLayer)
    same = made.same_padding(old)
    for axis, sides in (("height", ("top", "bottom")), ("width", ("left", "right"))):
        reach = (fields[f"kernel_{axis}"] - 1) * fields[f"dilation_{axis}"]
        half = (int(old[f"kernel_{axis}"]) - 1) * int(old[f"dilation_{axis}"]) // 2
        for side in sides:
            pad = f"pad_{side}"
            fields[pad] = reach // 2 if old[pad] == half else min(int(old[pad]), reach)
        if any(old[f"pad_{s}"] != half for s in sides) and all(
            old[f"pad_{s}"] == same[f"pad_{s}"] for s in sides
        ):
            new = made.same_padding(fields)
            fields |= {f"pad_{s}": new[f"pad_{s}"] for s in sides}
    return fields
