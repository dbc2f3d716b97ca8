"""Classical machine learning (`ai.onnx.ml`): linear models, support vectors, encoders, scalers, ensembles of trees.

Models are attributes of the calls: their coefficients are read once, four bytes each. Scores are made in float32
whatever the type of the features. Looking up a string or a number in a table is one operation.

The path of a sample is data-dependent: every sample is assumed to follow the longest path of each tree, one
comparison per node, and the votes of its leaves are summed. A node has a threshold, a feature and a child, 12 bytes; no more
nodes are read than there are.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, ceil_div, differ, dim_min
from graphflops.graph import Opaque
from graphflops.rules.onnx.entries import Touched, fused, work
from graphflops.rules.operands import Operands
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
# Operations and functions of a kernel after the dot product; a kernel of distances takes three operations per feature.
KERNELS = {"LINEAR": (0, 0), "POLY": (2, 1), "SIGMOID": (2, 1), "RBF": (1, 1)}
DISTANCE = 3


def rows_and_features(x: TensorType) -> tuple[Dim, Dim]:
    """Samples and features; a single axis is one sample."""
    require(x.rank in (1, 2), f"{x} is not a batch of samples")
    return (1, x.shape[0]) if x.rank == 1 else (x.shape[0], x.shape[1])


def scored(
    of: Operands, columns: Dim, *parts: Estimate, reads: Touched, transform: str = "", dtype: DType = FLOAT32
) -> Estimate:
    """The `columns` scores of every sample, computed by `parts`; a classifier returns the sample's class before them."""
    scores = of.x.like((rows_and_features(of.x)[0], columns), dtype)
    names = of.attributes.get("classlabels_strings")
    labels = () if names is None else (of.x.like(scores.shape[:1], STRING if names else INT64),)
    operations, functions = TRANSFORMS.get(transform or of.post_transform, (0, 0))
    after = work(operations * scores.numel, functions * scores.numel)
    return fused((*labels, scores), *parts, after, reads=reads, matrix_dtype=FLOAT32)


def linear(of: Operands) -> tuple[Estimate, Dim]:
    """The products of every sample with every set of coefficients, and the number of sets."""
    rows, features = rows_and_features(of.x)
    sets = ceil_div(len(of.coefficients), features)
    product = Estimate(
        matrix_flops=2 * rows * len(of.coefficients),
        vector_flops=rows * sets if of.intercepts else 0,
        reads=(of.x, FLOAT_BYTES * (len(of.coefficients) + len(of.intercepts))),
    )
    return product, sets


@rule("ai.onnx.ml.LinearRegressor").takes("x; coefficients intercepts=() targets=1 post_transform='NONE'")
def linear_regressor(of: Operands) -> Estimate:
    """A product per target."""
    product, _ = linear(of)
    return scored(of, of.targets, product, reads=product.reads)


CLASSES = "classlabels_ints=() classlabels_strings=() post_transform='NONE'"


@rule("ai.onnx.ml.LinearClassifier").takes(f"x; coefficients intercepts=() {CLASSES}")
def linear_classifier(of: Operands) -> Estimate:
    """A product per class, and the maximum; for two classes one score may stand for both."""
    product, sets = linear(of)
    labels = len(of.classlabels_ints or of.classlabels_strings)
    classes = 2 if labels == 2 and not differ(sets, 1) else sets
    largest = work(rows_and_features(of.x)[0] * classes)
    return scored(of, classes, product, largest, reads=product.reads)


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


SUPPORT = "coefficients kernel_type='LINEAR' rho=() support_vectors=()"


@rule("ai.onnx.ml.SVMRegressor").takes(f"x; {SUPPORT} n_supports=0 one_class=0 post_transform='NONE'")
def svm_regressor(of: Operands) -> Estimate:
    """The kernel with every support vector and the weighted sum of all; without support vectors one product."""
    rows, vectors = rows_and_features(of.x)[0], of.n_supports
    found = kernels(of.x, vectors or 1, of.kernel_type if vectors else "LINEAR")
    summed = Estimate(matrix_flops=2 * rows * vectors, vector_flops=rows * (1 + (of.one_class != 0)))
    held = FLOAT_BYTES * (len(of.coefficients) + len(of.rho) + len(of.support_vectors))
    return scored(of, 1, found, summed, reads=(of.x, held))


@rule("ai.onnx.ml.SVMClassifier").takes(f"x; {SUPPORT} prob_a=() vectors_per_class=() {CLASSES}")
def svm_classifier(of: Operands) -> Estimate:
    """Kernels with all support vectors, summed for every pair of classes, which vote; or one product per class."""
    rows, vectors = rows_and_features(of.x)[0], sum(of.vectors_per_class)
    labels = len(of.classlabels_ints or of.classlabels_strings)
    if vectors:
        pairs = labels * (labels - 1) // 2
        decided = Estimate(matrix_flops=2 * rows * vectors * (labels - 1), vector_flops=2 * rows * pairs)
        found, columns = kernels(of.x, vectors, of.kernel_type), labels if of.prob_a or labels == 2 else pairs
    else:
        found, columns = kernels(of.x, labels, "LINEAR"), labels
        decided = work(2 * rows * labels)
    likely = work(2 * rows * len(of.prob_a), rows * len(of.prob_a))
    stored = len(of.coefficients) + len(of.support_vectors) + len(of.rho) + 2 * len(of.prob_a)
    return scored(of, columns, found, decided, likely, reads=(of.x, FLOAT_BYTES * stored))


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


@rule("ai.onnx.ml.LabelEncoder").takes("x; values_int64s=() values_strings=() values_tensor=None")
def label_encoder(of: Operands) -> Estimate:
    """One look-up per element; the type is that of the values."""
    if of.values_tensor is not None:
        return looked_up(of.x, of.values_tensor.dtype)
    return looked_up(of.x, STRING if of.values_strings else INT64 if of.values_int64s else FLOAT32)


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
    """The work of descending trees with `nodes` nodes, whose longest paths sum to `depth`, and of the votes of a leaf."""
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


NODES = "nodes_treeids=() nodes_nodeids=() nodes_modes=() nodes_truenodeids=() nodes_falsenodeids=()"


def by_identity(of: Operands, votes: Ints) -> Estimate:
    """As `descended`, for nodes that are named by tree and number."""
    trees, nodes = of.nodes_treeids, of.nodes_nodeids
    listed = (trees, nodes, of.nodes_modes, of.nodes_truenodeids, of.nodes_falsenodeids)
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
    return descended(of.x, longest(roots, ways), len(set(trees)), len(nodes), each)


@rule("ai.onnx.ml.TreeEnsembleRegressor").takes(f"x; {NODES} n_targets=1 target_ids=() post_transform='NONE'")
def tree_ensemble_regressor(of: Operands) -> Estimate:
    """Sums the leaves that every sample reaches, per target."""
    down = by_identity(of, of.target_ids)
    return scored(of, of.n_targets, down, reads=down.reads)


@rule("ai.onnx.ml.TreeEnsembleClassifier").takes(
    f"x; {NODES} class_ids=() classlabels_int64s=() classlabels_strings=() post_transform='NONE'"
)
def tree_ensemble_classifier(of: Operands) -> Estimate:
    """Sums the leaves that every sample reaches, per class, and takes the maximum."""
    down, classes = by_identity(of, of.class_ids), len(of.classlabels_int64s or of.classlabels_strings)
    return scored(of, classes, down, work(rows_and_features(of.x)[0] * classes), reads=down.reads)


@rule("ai.onnx.ml.TreeEnsemble").takes(
    "x; n_targets=1 tree_roots nodes_trueleafs nodes_falseleafs nodes_truenodeids nodes_falsenodeids post_transform=0"
)
def tree_ensemble(of: Operands) -> Estimate:
    """Sums the leaves that every sample reaches, one vote each, per target."""
    listed = (of.nodes_trueleafs, of.nodes_falseleafs, of.nodes_truenodeids, of.nodes_falsenodeids)
    require(len({len(part) for part in listed}) == 1, "attributes of nodes differ in length")
    code, roots = of.post_transform, of.tree_roots
    require_known(0 <= code < len(TRANSFORM_NAMES), f"unknown transform {code}")
    ways: dict[Hashable, Sequence[Hashable]] = {}
    for place, (yes_ends, no_ends, yes, no) in enumerate(zip(*listed, strict=True)):
        ways[place] = [way for way, ends in ((yes, yes_ends), (no, no_ends)) if not ends]
    down = descended(of.x, longest(roots, ways), len(roots), len(ways), votes=1)
    return scored(of, of.n_targets, down, reads=down.reads, transform=TRANSFORM_NAMES[code], dtype=of.x.dtype)
