"""Networks of devices, the time of collectives, and pipeline schedules."""

from graphflops.links.cost import Kind, Network, Transfer, link_bytes, network_of, seconds

__all__ = ["Kind", "Network", "Transfer", "link_bytes", "network_of", "seconds"]
