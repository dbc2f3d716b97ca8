"""How devices are joined, what a collective over them takes, and the schedules of pipelines."""

from graphflops.links.cost import Kind, Network, Transfer, link_bytes, network_of, seconds

__all__ = ["Kind", "Network", "Transfer", "link_bytes", "network_of", "seconds"]
