"""Classical machine learning, and the optimizers' steps of ONNX's preview of training."""

from __future__ import annotations

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.graph import Opaque
from graphflops.tensor import FLOAT32, FLOAT64, INT64, STRING, SequenceType
from tests.support import price, shapes, t

ML = "ai.onnx.ml."
LABELS = {"classlabels_ints": (0, 1, 2)}
X = t("n", 4)
n = symbol("n")


def test_linear_models() -> None:
    classifier = price(ML + "LinearClassifier", X, coefficients=(0.1,) * 12, intercepts=(0.1,) * 3, **LABELS)
    assert [(x.shape, x.dtype) for x in classifier.out] == [((n,), INT64), ((n, 3), FLOAT32)]
    assert (classifier.matrix_flops, classifier.vector_flops) == (2 * 12 * n, 3 * n + 3 * n)
    assert classifier.cost.read_bytes == 4 * (4 * n + 15)
    likely = price(
        *(ML + "LinearClassifier", t(5, 4, dtype=FLOAT64)),
        coefficients=(0.1,) * 4,
        intercepts=(0.1,),
        classlabels_strings=("no", "yes"),
        post_transform="LOGISTIC",
    )
    assert [(x.shape, x.dtype) for x in likely.out] == [((5,), STRING), ((5, 2), FLOAT32)]
    assert likely.transcendentals == 10
    assert likely.matrix_dtype is FLOAT32
    regressor = price(ML + "LinearRegressor", X, coefficients=(0.1,) * 8, targets=2)
    assert (shapes(regressor), regressor.matrix_flops) == ([(n, 2)], 16 * n)


@pytest.mark.parametrize(
    "kernel, matrix, vector, functions",
    [("LINEAR", 2 * 4, 0, 0), ("POLY", 2 * 4, 2, 1), ("RBF", 0, 1 + 3 * 4, 1), ("SIGMOID", 2 * 4, 2, 1)],
)
def test_support_vectors(kernel, matrix, vector, functions) -> None:
    settings = {"support_vectors": (0.1,) * 12, "rho": (0.1,), "kernel_type": kernel}
    regressor = price(ML + "SVMRegressor", X, coefficients=(0.1,) * 3, n_supports=3, **settings)
    assert shapes(regressor) == [(n, 1)]
    assert regressor.matrix_flops == n * (3 * matrix + 2 * 3)
    assert regressor.vector_flops == n * (3 * vector + 1)
    assert regressor.transcendentals == n * 3 * functions


def test_a_regressor_without_support_vectors_is_one_product() -> None:
    regressor = price(ML + "SVMRegressor", X, coefficients=(0.1,) * 4, rho=(0.1,), kernel_type="RBF")
    assert (regressor.matrix_flops, regressor.vector_flops) == (2 * 4 * n, n)
    one_class = price(ML + "SVMRegressor", X, coefficients=(0.1,) * 4, rho=(0.1,), one_class=1)
    assert one_class.vector_flops == 2 * n


def test_votes_of_pairs_of_classes() -> None:
    settings = {
        "support_vectors": (0.1,) * 16,
        "vectors_per_class": (1, 1, 1, 1),
        "coefficients": (0.1,) * 12,
    }
    four = price(ML + "SVMClassifier", X, classlabels_ints=(0, 1, 2, 3), rho=(0.1,) * 6, **settings)
    assert shapes(four) == [(n,), (n, 6)]
    assert four.matrix_flops == n * (2 * 4 * 4 + 2 * 4 * 3)
    linear = price(ML + "SVMClassifier", X, coefficients=(0.1,) * 12, rho=(0.1,), **LABELS)
    assert (shapes(linear), linear.matrix_flops) == ([(n,), (n, 3)], 2 * 3 * 4 * n)


# A tree of two levels beside a single leaf.
NODES = {
    "nodes_treeids": (0, 0, 0, 0, 0, 1),
    "nodes_nodeids": (0, 1, 2, 3, 4, 0),
    "nodes_modes": ("BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "LEAF"),
    "nodes_truenodeids": (1, 3, 0, 0, 0, 0),
    "nodes_falsenodeids": (2, 4, 0, 0, 0, 0),
    "nodes_values": (0.5,) * 6,
    "nodes_featureids": (0,) * 6,
}


def test_trees_take_their_longest_path() -> None:
    regressor = price(ML + "TreeEnsembleRegressor", X, n_targets=2, target_ids=(0, 1, 0, 1), **NODES)
    assert shapes(regressor) == [(n, 2)]
    assert regressor.vector_flops == n * (2 + 2)  # two comparisons, a vote in either tree
    classifier = price(
        ML + "TreeEnsembleClassifier",
        t(5, 4),
        class_ids=(0, 1, 2, 0),
        classlabels_strings=("a", "b", "c"),
        **NODES,
    )
    assert [(x.shape, x.dtype) for x in classifier.out] == [((5,), STRING), ((5, 3), FLOAT32)]
    assert classifier.vector_flops == 5 * (2 + 2) + 15
    assert classifier.cost.read_bytes == 4 * 20 + 12 * 6


def test_tree_ensemble() -> None:
    nodes = {
        "tree_roots": (0,),
        "nodes_truenodeids": (1, 0, 2),
        "nodes_falsenodeids": (2, 1, 3),
        "nodes_trueleafs": (0, 1, 1),
        "nodes_falseleafs": (0, 1, 1),
        "nodes_splits": t(3, dtype=FLOAT64),
    }
    estimate = price(ML + "TreeEnsemble.5", t(7, 4, dtype=FLOAT64), n_targets=2, post_transform=1, **nodes)
    assert [(x.shape, x.dtype) for x in estimate.out] == [((7, 2), FLOAT64)]
    assert estimate.vector_flops == 7 * (2 + 1) + 4 * 14
    assert estimate.transcendentals == 14


def test_trees_that_go_in_circles_end() -> None:
    circle = {**NODES, "nodes_falsenodeids": (0, 1, 0, 0, 0, 0)}
    assert price(ML + "TreeEnsembleRegressor", t(1, 4), target_ids=(0,), **circle).vector_flops < 10
    with pytest.raises(ShapeError, match="differ in length"):
        price(ML + "TreeEnsembleRegressor", t(1, 4), target_ids=(0,), **{**NODES, "nodes_modes": ("LEAF",)})


def test_deep_trees_do_not_exhaust_the_stack() -> None:
    count = 20_000
    chain = {
        "nodes_treeids": (0,) * count,
        "nodes_nodeids": tuple(range(count)),
        "nodes_modes": ("BRANCH_LEQ",) * (count - 1) + ("LEAF",),
        "nodes_truenodeids": (*range(1, count), 0),
        "nodes_falsenodeids": (*range(1, count), 0),
    }
    estimate = price(ML + "TreeEnsembleRegressor", t(1, 4), target_ids=(0,), **chain)
    assert estimate.vector_flops == count - 1 + 1


@pytest.mark.parametrize(
    "op, operands, attributes, shape, dtype",
    [
        ("ArrayFeatureExtractor", (t(5, 4), t(2, dtype=INT64)), {}, (5, 2), FLOAT32),
        ("ArrayFeatureExtractor", (t(4), t(2, dtype=INT64)), {}, (1, 2), FLOAT32),
        ("Binarizer", (X,), {"threshold": 1.0}, (n, 4), FLOAT32),
        ("Imputer", (X,), {"imputed_value_floats": (1.0,), "replaced_value_float": 0.0}, (n, 4), FLOAT32),
        ("Scaler", (t(5, 4, dtype=INT64),), {"offset": (0.1,), "scale": (0.2,)}, (5, 4), FLOAT32),
        ("Normalizer", (t(5, 4, dtype=FLOAT64),), {"norm": "L2"}, (5, 4), FLOAT32),
        ("OneHotEncoder", (t(5, 2, dtype=STRING),), {"cats_strings": ("a", "b", "c")}, (5, 2, 3), FLOAT32),
        ("CategoryMapper", (t(5, dtype=STRING),), {"cats_strings": ("a",), "cats_int64s": (1,)}, (5,), INT64),
        ("LabelEncoder.1", (t(5, dtype=INT64),), {"classes_strings": ("a",)}, (5,), STRING),
        (
            "LabelEncoder.2",
            (t(5, dtype=INT64),),
            {"keys_int64s": (1,), "values_floats": (1.0,)},
            (5,),
            FLOAT32,
        ),
        ("LabelEncoder.4", (t(5, dtype=INT64),), {"values_tensor": t(2, dtype=FLOAT64)}, (5,), FLOAT64),
        ("FeatureVectorizer", (t(5, 3), t(5, 2)), {"inputdimensions": (3, 2)}, (5, 5), FLOAT32),
        ("DictVectorizer", (Opaque("map"),), {"string_vocabulary": ("a", "b")}, (1, 2), FLOAT32),
        (
            "CastMap",
            (Opaque("map"),),
            {"map_form": "SPARSE", "max_map": 7, "cast_to": "TO_INT64"},
            (1, 7),
            INT64,
        ),
        ("CastMap", (Opaque("map"),), {}, (1, symbol("map_entries?")), FLOAT32),
    ],
)
def test_features(op, operands, attributes, shape, dtype) -> None:
    estimate = price(ML + op, *operands, **attributes)
    assert [(x.shape, x.dtype) for x in estimate.out] == [(shape, dtype)]
    assert estimate.cost is not None


def test_a_map_for_every_row() -> None:
    assert price(ML + "ZipMap", X, classlabels_strings=("a",) * 4).out == (SequenceType(None, n),)


@pytest.mark.parametrize(
    "op, states, attributes, flops, roots",
    [
        ("Adagrad", 1, {"norm_coefficient": 0.1}, 8, 1),
        ("Adam", 2, {"norm_coefficient_post": 0.1}, 12, 1),
        ("Adam", 2, {}, 11, 1),
        ("Momentum", 1, {"mode": "standard", "norm_coefficient": 0.1}, 7, 0),
        ("Momentum", 1, {"mode": "nesterov", "norm_coefficient": 0.0}, 7, 0),
    ],
)
def test_optimizers(op, states, attributes, flops, roots) -> None:
    settings = {**attributes, **({"alpha": 0.9, "beta": 0.1} if op == "Momentum" else {})}
    pair = (t(3, 4), t(5))
    estimate = price(f"ai.onnx.preview.training.{op}", t(), t(dtype=INT64), *pair * (2 + states), **settings)
    assert shapes(estimate) == [(3, 4), (5,)] * (1 + states)
    assert (estimate.vector_flops, estimate.transcendentals) == (17 * flops, 17 * roots)
    with pytest.raises(ShapeError, match="operands do not make"):
        price(f"ai.onnx.preview.training.{op}", t(), t(dtype=INT64), *pair * (1 + states), t(1), **settings)
