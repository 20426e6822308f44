"""Networks read from ONNX files: structure, shapes and small constants, never weights."""

from resperf.network._base import MALFORMED, NETWORKS_CACHED, Network, Node, Rewritten, Tensor
from resperf.network.block import block_of
from resperf.network.cached import read_network_once
from resperf.network.digest import structure_digest
from resperf.network.given import graph_digest, read_given_network, read_graph, weightless
from resperf.network.model import stripped_model
from resperf.network.parameters import graph_parameters
from resperf.network.reader import networks_at, read_network
from resperf.network.weights import materialise

__all__ = [
    "MALFORMED",
    "NETWORKS_CACHED",
    "Network",
    "Node",
    "Rewritten",
    "Tensor",
    "block_of",
    "graph_digest",
    "graph_parameters",
    "materialise",
    "networks_at",
    "read_given_network",
    "read_graph",
    "read_network",
    "read_network_once",
    "stripped_model",
    "structure_digest",
    "weightless",
]
