"""Classical machine learning (`ai.onnx.ml`): linear models, support vectors, encoders, scalers, ensembles of trees.

Models are attributes of the calls: their coefficients are read once, four bytes each. Scores are made in float32
whatever the features are. Looking up a string or a number in a table is one operation.

The path of a sample is data-dependent: every sample is assumed to follow the longest path of each tree, one
comparison per node, and the votes of its leaves are summed. A node is a threshold, a feature and a way on, 12 bytes, of
which no more are read than there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, ceil_div, differ, dim_min
from graphflops.graph import Opaque
from graphflops.rules.onnx.entries import Touched, fused, work
from graphflops.rules.reduce import SOFTMAX
from graphflops.rules.registry import require, require_known, rule
from graphflops.tensor import FLOAT32, INT64, STRING, DType, SequenceType, TensorType

KIND = "classical"

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Strings = tuple[str, ...]
FLOAT_BYTES = 4
# Operations and functions per score.
TRANSFORMS = {"SOFTMAX": (SOFTMAX, 1), "SOFTMAX_ZERO": (SOFTMAX + 1, 1), "LOGISTIC": (0, 1), "PROBIT": (4, 2)}
# Of a kernel, what follows the dot product: operations and functions; that of distances takes three per feature.
KERNELS = {"LINEAR": (0, 0), "POLY": (2, 1), "SIGMOID": (2, 1), "RBF": (1, 1)}
DISTANCE = 3


def rows_and_features(x: TensorType) -> tuple[Dim, Dim]:
    """Samples and features; a single axis is one sample."""
    require(x.rank in (1, 2), f"{x} is not a batch of samples")
    return (1, x.shape[0]) if x.rank == 1 else (x.shape[0], x.shape[1])


def scored(
    x: TensorType,
    columns: Dim,
    *parts: Estimate,
    reads: Touched,
    post_transform: str = "NONE",
    strings: Strings | None = None,
    dtype: DType = FLOAT32,
    **others: object,
) -> Estimate:
    """The scores of every sample, so many, after their parts; before them its class, where `strings` says of which type."""
    scores = x.like((rows_and_features(x)[0], columns), dtype)
    labels = () if strings is None else (x.like(scores.shape[:1], STRING if strings else INT64),)
    operations, functions = TRANSFORMS.get(post_transform, (0, 0))
    after = work(operations * scores.numel, functions * scores.numel)
    return fused((*labels, scores), *parts, after, reads=reads, matrix_dtype=FLOAT32)


def linear(x: TensorType, coefficients: Floats, intercepts: Floats) -> tuple[Estimate, Dim]:
    """The products of every sample with every set of coefficients, and the number of sets."""
    rows, features = rows_and_features(x)
    sets = ceil_div(len(coefficients), features)
    product = Estimate(
        matrix_flops=2 * rows * len(coefficients),
        vector_flops=rows * sets if intercepts else 0,
        reads=(x, FLOAT_BYTES * (len(coefficients) + len(intercepts))),
    )
    return product, sets


@rule("ai.onnx.ml.LinearRegressor")
def linear_regressor(
    x: TensorType, *, coefficients: Floats, intercepts: Floats = (), targets: int = 1, **after: Any
) -> Estimate:
    """A product per target."""
    product, _ = linear(x, coefficients, intercepts)
    return scored(x, targets, product, reads=product.reads, **after)


@rule("ai.onnx.ml.LinearClassifier")
def linear_classifier(
    x: TensorType,
    *,
    coefficients: Floats,
    classlabels_ints: Ints = (),
    classlabels_strings: Strings = (),
    intercepts: Floats = (),
    **after: Any,
) -> Estimate:
    """A product per class, and the maximum; for two classes one score may stand for both."""
    product, sets = linear(x, coefficients, intercepts)
    labels = len(classlabels_ints or classlabels_strings)
    classes = 2 if labels == 2 and not differ(sets, 1) else sets
    largest = work(rows_and_features(x)[0] * classes)
    return scored(x, classes, product, largest, reads=product.reads, strings=classlabels_strings, **after)


def kernels(x: TensorType, vectors: Dim, kernel_type: str) -> Estimate:
    """The kernel of every sample with `vectors` vectors."""
    rows, features = rows_and_features(x)
    pairs = rows * vectors
    require_known(kernel_type in KERNELS, f"unknown kernel {kernel_type!r}")
    operations, functions = KERNELS[kernel_type]
    apart = kernel_type == "RBF"
    return Estimate(
        matrix_flops=0 if apart else 2 * pairs * features,
        vector_flops=pairs * (operations + (DISTANCE * features if apart else 0)),
        transcendentals=pairs * functions,
    )


@rule("ai.onnx.ml.SVMRegressor")
def svm_regressor(
    x: TensorType,
    *,
    coefficients: Floats,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    rho: Floats = (),
    support_vectors: Floats = (),
    **after: Any,
) -> Estimate:
    """The kernel with every support vector and the weighted sum of all; without support vectors one product."""
    rows, _ = rows_and_features(x)
    found = kernels(x, n_supports or 1, kernel_type if n_supports else "LINEAR")
    summed = Estimate(matrix_flops=2 * rows * n_supports, vector_flops=rows * (1 + (one_class != 0)))
    held = FLOAT_BYTES * (len(coefficients) + len(rho) + len(support_vectors))
    return scored(x, 1, found, summed, reads=(x, held), **after)


@rule("ai.onnx.ml.SVMClassifier")
def svm_classifier(
    x: TensorType,
    *,
    coefficients: Floats,
    classlabels_ints: Ints = (),
    classlabels_strings: Strings = (),
    kernel_type: str = "LINEAR",
    prob_a: Floats = (),
    rho: Floats = (),
    support_vectors: Floats = (),
    vectors_per_class: Ints = (),
    **after: Any,
) -> Estimate:
    """Kernels with all support vectors, summed for every pair of classes, which vote; or one product per class.

    Scores are per class where there are probabilities, else per pair of classes, of which two have both signs.
    """
    rows, _ = rows_and_features(x)
    labels, vectors = len(classlabels_ints or classlabels_strings), sum(vectors_per_class)
    if vectors:
        pairs = labels * (labels - 1) // 2
        decided = Estimate(matrix_flops=2 * rows * vectors * (labels - 1), vector_flops=2 * rows * pairs)
        found, columns = kernels(x, vectors, kernel_type), labels if prob_a or labels == 2 else pairs
    else:
        found, columns = kernels(x, labels, "LINEAR"), labels
        decided = work(2 * rows * labels)
    likely = work(2 * rows * len(prob_a), rows * len(prob_a))
    held = FLOAT_BYTES * (len(coefficients) + len(support_vectors) + len(rho) + 2 * len(prob_a))
    return scored(x, columns, found, decided, likely, reads=(x, held), strings=classlabels_strings, **after)


# Look-ups of values.


@rule("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(x: TensorType, indices: TensorType) -> Estimate:
    """Selects columns of the last axis; a single axis becomes a row."""
    out = x.like((*(x.shape[:-1] or (1,)), indices.numel))
    return Estimate((out,), reads=(out, indices))


@rule("ai.onnx.ml.Scaler")
def scaler(x: TensorType, *, offset: Floats = (), scale: Floats = ()) -> Estimate:
    """A difference and a product per element."""
    reads = (x, FLOAT_BYTES * (len(offset) + len(scale)))
    return Estimate((x.like(dtype=FLOAT32),), vector_flops=2 * x.numel, reads=reads)


@rule("ai.onnx.ml.Normalizer")
def normalizer(x: TensorType, *, norm: str = "MAX") -> Estimate:
    """The maximum, sum or root of the sum of squares of every row, and a division per element."""
    rows, _ = rows_and_features(x)
    squares = norm == "L2"
    return Estimate((x.like(dtype=FLOAT32),), 0, (2 + squares) * x.numel, rows if squares else 0, reads=(x,))


@rule("ai.onnx.ml.OneHotEncoder")
def one_hot_encoder(x: TensorType, *, cats_int64s: Ints = (), cats_strings: Strings = ()) -> Estimate:
    """A look-up per element; writes a row of zeros with at most one 1."""
    categories = len(cats_int64s or cats_strings)
    return Estimate((x.like((*x.shape, categories), FLOAT32),), vector_flops=x.numel, reads=(x,))


def looked_up(x: TensorType, dtype: DType) -> Estimate:
    """One look-up per element."""
    return Estimate((x.like(dtype=dtype),), vector_flops=x.numel, reads=(x,))


@rule("ai.onnx.ml.CategoryMapper", "ai.onnx.ml.LabelEncoder.1")
def category_mapper(x: TensorType) -> Estimate:
    """Strings to integers, or integers to strings."""
    return looked_up(x, INT64 if x.dtype == STRING else STRING)


@rule("ai.onnx.ml.LabelEncoder")
def label_encoder(
    x: TensorType,
    *,
    values_int64s: Ints = (),
    values_strings: Strings = (),
    values_tensor: TensorType | None = None,
) -> Estimate:
    """One look-up per element; the type is that of the values."""
    if values_tensor is not None:
        return looked_up(x, values_tensor.dtype)
    return looked_up(x, STRING if values_strings else INT64 if values_int64s else FLOAT32)


@rule("ai.onnx.ml.FeatureVectorizer")
def feature_vectorizer(*tensors: TensorType, inputdimensions: Ints = ()) -> Estimate:
    """Joins features; those that are not float32 are converted."""
    sizes = [rows_and_features(x) for x in tensors]
    widths: Dim = sum(inputdimensions) if inputdimensions else sum(width for _, width in sizes)
    out = TensorType((sizes[0][0], widths), FLOAT32)
    converted = sum(x.numel for x in tensors if x.dtype != FLOAT32)
    return Estimate((out,), vector_flops=converted, reads=tensors)


# Maps from names or numbers to values; their contents are unknown.


@rule("ai.onnx.ml.DictVectorizer")
def dict_vectorizer(x: Opaque, *, int64_vocabulary: Ints = (), string_vocabulary: Strings = ()) -> Estimate:
    """A look-up for every name in the vocabulary; floating-point values are assumed to be float32."""
    count = len(int64_vocabulary or string_vocabulary)
    return Estimate((TensorType((1, count), FLOAT32),), vector_flops=count)


@rule("ai.onnx.ml.CastMap")
def cast_map(x: Opaque, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Estimate:
    """The values in order of their keys, or each at the index of its key."""
    count = data_dependent("map_entries") if map_form == "DENSE" else max_map
    dtype = {"TO_STRING": STRING, "TO_INT64": INT64}.get(cast_to, FLOAT32)
    return Estimate((TensorType((1, count), dtype),), vector_flops=count)


@rule("ai.onnx.ml.ZipMap")
def zip_map(x: TensorType) -> Estimate:
    """A map of names to values for every row."""
    rows, _ = rows_and_features(x)
    return Estimate((SequenceType(None, rows),), reads=(x,), writes=(x,))


Ways = Mapping[Hashable, Sequence[Hashable]]

NODE_BYTES = 12
TRANSFORM_NAMES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def descended(x: TensorType, depth: int, trees: int, nodes: int, votes: int) -> Estimate:
    """The work of descending all trees, of so many nodes, whose longest paths sum up to `depth`, and the votes per leaf."""
    rows, _ = rows_and_features(x)
    visited = dim_min(nodes, rows * depth)
    return Estimate(vector_flops=rows * (depth + trees * votes), reads=(x, NODE_BYTES * visited))


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
    x: TensorType,
    votes: Ints,
    *,
    nodes_treeids: Ints = (),
    nodes_nodeids: Ints = (),
    nodes_modes: Strings = (),
    nodes_truenodeids: Ints = (),
    nodes_falsenodeids: Ints = (),
    **others: object,
) -> Estimate:
    """As `descended`, by nodes that are named by tree and number."""
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
    each = max(len(votes) // max(leaves, 1), 1)
    return descended(x, longest(roots, ways), len(set(trees)), len(nodes), each)


@rule("ai.onnx.ml.TreeEnsembleRegressor")
def tree_ensemble_regressor(
    x: TensorType, *, n_targets: int = 1, target_ids: Ints = (), post_transform: str = "NONE", **nodes: Any
) -> Estimate:
    """Sums the leaves that every sample reaches, per target."""
    down = by_identity(x, target_ids, **nodes)
    return scored(x, n_targets, down, reads=down.reads, post_transform=post_transform)


@rule("ai.onnx.ml.TreeEnsembleClassifier")
def tree_ensemble_classifier(
    x: TensorType,
    *,
    class_ids: Ints = (),
    classlabels_int64s: Ints = (),
    classlabels_strings: Strings = (),
    post_transform: str = "NONE",
    **nodes: Any,
) -> Estimate:
    """Sums the leaves that every sample reaches, per class, and takes the maximum."""
    down, classes = by_identity(x, class_ids, **nodes), len(classlabels_int64s or classlabels_strings)
    largest, labels = work(rows_and_features(x)[0] * classes), classlabels_strings
    return scored(x, classes, down, largest, reads=down.reads, post_transform=post_transform, strings=labels)


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
    down = descended(x, longest(tree_roots, ways), len(tree_roots), len(ways), votes=1)
    after = TRANSFORM_NAMES[post_transform]
    return scored(x, n_targets, down, reads=down.reads, post_transform=after, dtype=x.dtype)
