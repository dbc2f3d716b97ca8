"""Ensembles of decision trees.

The path of a sample is data-dependent: every sample is assumed to follow the longest path of each tree, one
comparison per node, and the votes of its leaves are summed. A node is a threshold, a feature and a way on, 12 bytes, of
which no more are read than there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphflops.cost import Estimate
from graphflops.dims import dim_min
from graphflops.rules.onnx.fused import Outputs, chosen, fused, work
from graphflops.rules.onnx.ml import Ints, Strings, labelled, rows_and_features, transformed
from graphflops.rules.registry import require, require_known, rule
from graphflops.tensor import FLOAT32, TensorType

Ways = Mapping[Hashable, Sequence[Hashable]]

KIND = "classical"

NODE_BYTES = 12
TRANSFORM_NAMES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass(frozen=True, slots=True)
class Forest:
    """An ensemble's size: the summed longest paths of its trees, trees, nodes, and votes per leaf."""

    depth: int
    trees: int
    nodes: int
    votes: int

    def scored(self, x: TensorType, scores: TensorType, post_transform: str) -> tuple[Estimate, Estimate]:
        """The work of descending all trees and of the function of the scores; the first result has the reads."""
        rows, _ = rows_and_features(x)
        visited = dim_min(self.nodes, rows * self.depth)
        down = Estimate(
            vector_flops=rows * (self.depth + self.trees * self.votes), reads=(x, NODE_BYTES * visited)
        )
        return down, transformed(scores, post_transform)


def longest(roots: Iterable[Hashable], ways: Ways) -> int:
    """The summed lengths of the longest paths from the roots; a cycle is not followed."""
    depths: dict[Hashable, int] = {}
    total = 0
    for root in roots:
        open_nodes: list[tuple[Hashable, bool]] = [(root, False)]
        while open_nodes:
            node, left = open_nodes.pop()
            if left:
                depths[node] = 1 + max((depths.get(way, 0) for way in ways[node]), default=0)
            elif node in ways and node not in depths:
                depths[node] = 1
                open_nodes.append((node, True))
                open_nodes.extend((way, False) for way in ways[node])
        total += depths.get(root, 0)
    return total


def by_identity(
    votes: Ints,
    *,
    nodes_treeids: Ints = (),
    nodes_nodeids: Ints = (),
    nodes_modes: Strings = (),
    nodes_truenodeids: Ints = (),
    nodes_falsenodeids: Ints = (),
    **others: object,
) -> Forest:
    """An ensemble whose nodes are named by tree and number."""
    trees, nodes = nodes_treeids, nodes_nodeids
    listed = (trees, nodes, nodes_modes, nodes_truenodeids, nodes_falsenodeids)
    require(len({len(part) for part in listed}) == 1, "attributes of nodes differ in length")
    ways: dict[Hashable, Sequence[Hashable]] = {}
    leaves = 0
    for tree, node, mode, yes, no in zip(*listed, strict=True):
        if mode == "LEAF":
            leaves += 1
        else:
            ways[tree, node] = ((tree, yes), (tree, no))
    led_to = {way for both in ways.values() for way in both}
    roots = [place for place in dict.fromkeys(zip(trees, nodes, strict=True)) if place not in led_to]
    return Forest(longest(roots, ways), len(set(trees)), len(nodes), max(len(votes) // max(leaves, 1), 1))


@rule("ai.onnx.ml.TreeEnsembleRegressor")
def tree_ensemble_regressor(
    x: TensorType, *, n_targets: int = 1, target_ids: Ints = (), post_transform: str = "NONE", **nodes: Any
) -> Estimate:
    """Sums the leaves that every sample reaches, per target."""
    forest = by_identity(target_ids, **nodes)
    out = x.like((rows_and_features(x)[0], n_targets), FLOAT32)
    down, after = forest.scored(x, out, post_transform)
    return fused((out,), down, after, reads=down.reads)


@rule("ai.onnx.ml.TreeEnsembleClassifier")
def tree_ensemble_classifier(
    x: TensorType,
    *,
    class_ids: Ints = (),
    classlabels_int64s: Ints = (),
    classlabels_strings: Strings = (),
    post_transform: str = "NONE",
    outputs: Outputs = (True, True),
    **nodes: Any,
) -> Estimate:
    """Sums the leaves that every sample reaches, per class, and takes the maximum."""
    forest = by_identity(class_ids, **nodes)
    classes = len(classlabels_int64s or classlabels_strings)
    scores = x.like((rows_and_features(x)[0], classes), FLOAT32)
    down, after = forest.scored(x, scores, post_transform)
    out = chosen(outputs, labelled(x, scores, classlabels_strings), scores)
    return fused(out, down, after, work(scores.numel), reads=down.reads)


@rule("ai.onnx.ml.TreeEnsemble")
def tree_ensemble(
    x: TensorType,
    *,
    n_targets: int = 1,
    tree_roots: Ints,
    nodes_trueleafs: Ints,
    nodes_falseleafs: Ints,
    nodes_truenodeids: Ints,
    nodes_falsenodeids: Ints,
    post_transform: int = 0,
) -> Estimate:
    """Sums the leaves that every sample reaches, one vote each, per target."""
    listed = (nodes_trueleafs, nodes_falseleafs, nodes_truenodeids, nodes_falsenodeids)
    require(len({len(part) for part in listed}) == 1, "attributes of nodes differ in length")
    require_known(0 <= post_transform < len(TRANSFORM_NAMES), f"unknown transform {post_transform}")
    ways: dict[Hashable, Sequence[Hashable]] = {}
    for place, (yes_ends, no_ends, yes, no) in enumerate(zip(*listed, strict=True)):
        ways[place] = [way for way, ends in ((yes, yes_ends), (no, no_ends)) if not ends]
    forest = Forest(longest(tree_roots, ways), len(tree_roots), len(ways), votes=1)
    out = x.like((rows_and_features(x)[0], n_targets))
    down, after = forest.scored(x, out, TRANSFORM_NAMES[post_transform])
    return fused((out,), down, after, reads=down.reads)
