"""Custom operators that libraries register and that can stand in an export, and which of them have rules.

    python -m tests.oracle.custom_operators [LIBRARY ...]

Without arguments: transformers, timm, diffusers, torchao, torchvision, as far as they are installed. Of each library the
modules whose source registers operators are imported; those of modules that cannot be imported here, for want of a
GPU or of another library, are read off the source. Prints one line for each operator and one for each library; exits 1 if a
library's stable operator (one outside of `prototype` and `experimental`) has no rule.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import sys
import warnings
from pathlib import Path

import torch

from graphflops.rules import find

LIBRARIES = ("torchvision", "transformers", "timm", "diffusers", "torchao")
_REGISTERS = re.compile(r"torch\.library|custom_op\(|triton_op\(|Library\(")
_NAMED = re.compile(r"""(?:custom_op|triton_op)\(\s*["'](\w+)::(\w+)["']""")
# Namespaces of torch itself, some of which are only filled when a library imports the part of torch that does.
_OF_TORCH = re.compile(
    r"(_?c10d_functional\w*|_dtensor|_inductor_test|aten|cplib|flex_lib|fsdp|inductor|mempool|onnx|onnx_symbolic|prims|"
    r"quantized\w*|rngprims|streams|symm_mem)\."
)
# Operators that stand in no export of a model, and why.
NOT_EXPORTED = {
    "image.": "reads, writes or decodes files of pictures",
    "torchvision._cuda_version": "says how the library was built",
    "torchvision.box_iou_rotated": "the vertices of overlaps that it clips depend on data, and no rule bounds their number",
    "torchao.fused_pad_token_groups": "a kernel of `prototype` without a schema",
    "torchao.fused_unpad_token_groups": "a kernel of `prototype` without a schema",
    "torchao.mxfp8_quantize": "a kernel of `prototype` without a schema",
    "torchao.mx_block_rearrange_2d_M_groups": "a kernel of `prototype`",
}
_UNSTABLE = ("prototype", "experimental", "testing", "test", "benchmarks")


def registered() -> set[str]:
    """All operators that torch knows: `aten.add`."""
    names = {
        ".".join(name.replace("::", ".").split(".")[:2]) for name in torch._C._dispatch_get_all_op_names()
    }
    return {name for name in names if not _OF_TORCH.match(name)}


def sources(library: str) -> list[tuple[str, Path]]:
    """The modules of a library whose source registers operators, by name."""
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        if _REGISTERS.search(path.read_text(errors="replace")):
            parts = path.relative_to(root).with_suffix("").parts
            found.append((".".join((library, *(part for part in parts if part != "__init__"))), path))
    return found


def imported(module: str) -> bool:
    """Whether the module can be imported here; what it prints is dropped."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(module)
        except (Exception, SystemExit):
            return False
    return True


def operators(library: str) -> dict[str, str]:
    """A library's operators, each with the module that registers it."""
    known = registered()
    found: dict[str, str] = {}
    imported(library)
    found.update(dict.fromkeys(registered() - known, library))
    known |= found.keys()
    for module, path in sources(library):
        works = imported(module)
        new = dict.fromkeys(sorted(registered() - known), module)
        if not works:
            names = _NAMED.findall(path.read_text(errors="replace"))
            new.update({f"{space}.{name}": f"{module} (not imported)" for space, name in names})
        known |= new.keys()
        found |= {name: where for name, where in new.items() if name not in found}
    return found


def has_rule(name: str) -> bool:
    """Whether a rule prices the operator, under any of its overloads."""
    return find(name) is not None or find(f"{name}.default") is not None


def main(libraries: list[str]) -> int:
    """List the operators of every library; the exit code."""
    missing = 0
    for library in libraries or LIBRARIES:
        if importlib.util.find_spec(library) is None:
            print(f"{library}: not installed")
            continue
        found = operators(library)
        priced = {name for name in found if has_rule(name)}
        for name, module in sorted(found.items()):
            unstable = any(part in _UNSTABLE for part in module.split("."))
            reason = next((why for start, why in NOT_EXPORTED.items() if name.startswith(start)), "")
            missing += name not in priced and not unstable and not reason
            print(f"  {'rule' if name in priced else 'none'}  {name}  {reason or module}")
        version = getattr(sys.modules.get(library), "__version__", "?")
        print(f"{library} {version}: {len(found)} operators, {len(priced)} with rules")
    print(f"{missing} stable operators without rules")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
