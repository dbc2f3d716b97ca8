"""The program as a networkx graph with costs: built from a report, folded to modules, asked, and cut."""

from graphflops.structure.answer import cuts
from graphflops.structure.queries import bottlenecks, critical_path

__all__ = ["bottlenecks", "critical_path", "cuts"]
