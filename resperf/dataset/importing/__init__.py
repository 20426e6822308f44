"""Published timings, imported as datasets (docs/importing.md)."""

from collections.abc import Callable, Mapping

from resperf.dataset.importing.distributed import (
    BATCHAI,
    GAVEL,
    POLLUX,
    import_batchai,
    import_gavel,
    import_pollux,
)
from resperf.dataset.importing.engine_rows import TRTEXEC, import_trtexec
from resperf.dataset.importing.gpumemnet import GPUMEMNET, import_gpumemnet
from resperf.dataset.importing.importer import import_dataset
from resperf.dataset.importing.latencies import TENSORRT, import_latencies
from resperf.dataset.importing.mapping import FORMATS, read_mapping, shipped_mapping
from resperf.dataset.importing.network_list import LIST, import_list
from resperf.dataset.importing.neusight import NEUSIGHT, import_neusight
from resperf.dataset.importing.published import Imported
from resperf.dataset.importing.timm import TIMM, import_timm
from resperf.dataset.importing.trtexec import EngineLayer, EngineTensor, read_exports
from resperf.dataset.importing.vidur import VIDUR, import_vidur

PUBLISHED: Mapping[str, Callable[..., Imported]] = {
    BATCHAI: import_batchai,
    GAVEL: import_gavel,
    POLLUX: import_pollux,
    GPUMEMNET: import_gpumemnet,
    NEUSIGHT: import_neusight,
    TENSORRT: import_latencies,
    TIMM: import_timm,
    TRTEXEC: import_trtexec,
    VIDUR: import_vidur,
}
"""Format -> function that imports files which say themselves what they are of."""

__all__ = ["BATCHAI", "FORMATS", "GAVEL", "GPUMEMNET", "LIST", "POLLUX", "PUBLISHED", "EngineLayer",
           "EngineTensor", "Imported", "import_batchai", "import_dataset", "import_gavel",
           "import_gpumemnet", "import_latencies", "import_list", "import_neusight",
           "import_pollux", "import_timm", "import_trtexec", "import_vidur", "read_exports",
           "read_mapping", "shipped_mapping"]  # fmt: skip
