"""`resperf cluster`."""

from __future__ import annotations

from pathlib import Path

import click

from resperf.cli import _options as options
from resperf.cli._sections import HOW, Command, option
from resperf.errors import ResperfError

EPILOG = """\b
Examples:
  resperf cluster planned.toml
  resperf cluster --ray --exchange -o lab.toml
"""


@click.command("cluster", cls=Command, epilog=EPILOG)
@click.argument("cluster", metavar="[CLUSTER]", required=False)
@options.ray("Describe the nodes of a cluster of Ray (by default of the one that runs here).")
@option(
    "--exchange", section=HOW, is_flag=True,
    help="Measure how fast the nodes sum gradients between them (needs PyTorch there).",
)  # fmt: skip
@options.output("FILE.toml", "Write the cluster, for `predict --cluster`.")
@options.JSON
def command(
    cluster: str | None, ray: str | None, exchange: bool, output: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Show what the nodes of a cluster have, together and each.

    CLUSTER is a TOML file, or the name of a cluster that is known. What is not known is said, never
    counted as 0.
    """
    from resperf.devices.cluster import cluster_of, named_clusters
    from resperf.files import write_whole
    from resperf.report.cluster import cluster_json, cluster_text

    if (cluster is None) == (ray is None) or (exchange and ray is None):
        raise ResperfError(
            f"name a TOML file or a known cluster ({', '.join(named_clusters())}), or write --ray, "
            "which alone goes with --exchange"
        )
    if cluster is not None:
        described = cluster_of(cluster)
    else:
        from resperf.workflows.cluster import survey

        described = survey(str(ray), exchange=exchange)
    if output is not None:
        write_whole(output, described.to_toml().encode())
    options.show(as_json, cluster_json(described), cluster_text(described))
