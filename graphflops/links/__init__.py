"""How devices are joined, what a collective over them takes, and the schedules of pipelines."""

from graphflops.links.cost import Kind, Transfer, link_bytes, seconds
from graphflops.links.network import Network, network_of

__all__ = ["Kind", "Network", "Transfer", "link_bytes", "network_of", "seconds"]
