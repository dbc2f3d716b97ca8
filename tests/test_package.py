"""What `import graphflops` gives, and what it does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "sympy", "networkx", "onnx", "tqdm", "msgspec")


def imported(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has imported after this code."""
    script = f"{code}\nimport sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split()) if result.stdout.strip() else set()


def test_importing_the_package_imports_nothing_heavy():
    assert imported("import graphflops") == set()


def test_the_rules_need_nothing_heavy():
    assert imported("from graphflops.rules import find; find('aten.mm')") == {
        "msgspec"
    }  # of which records are made


def test_a_file_is_analyzed_without_torch_networkx_or_onnx():
    code = "import graphflops; graphflops.analyze('samples/gqa_transformer.pt2')"
    assert imported(code) == {"msgspec"}


def test_every_public_name_is_a_function_even_after_its_module_was_imported():
    code = "import graphflops.analysis, graphflops.exporters, graphflops.rules, graphflops\n"
    names = "[graphflops.analyze, graphflops.load, graphflops.rule]"
    subprocess.run([sys.executable, "-c", f"{code}assert all(map(callable, {names}))"], check=True)


def test_an_unknown_name_is_an_attribute_error():
    import graphflops

    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        graphflops.analyse  # noqa: B018
