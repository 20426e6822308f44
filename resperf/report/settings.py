"""Settings of several rows as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

from resperf.report.tables import UNKNOWN
from resperf.settings import Setting

_FIELDS = ("framework_version", "mode", "precision", "layout", "compiled", "threads")


def setting_columns(settings: Sequence[Setting]) -> dict[str, list[str]]:
    """Return heading -> cells of what differs between settings, other options included."""
    columns = {name: [getattr(setting, name) for setting in settings] for name in _FIELDS}
    for name in sorted({name for setting in settings for name in setting.options}):
        columns[name] = [setting.options.get(name) for setting in settings]
    return {
        name: [str(value or UNKNOWN) for value in values]
        for name, values in columns.items()
        if len(set(values)) > 1
    }
