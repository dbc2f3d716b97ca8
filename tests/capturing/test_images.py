"""Models of timm and torchvision by name, where these are installed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.test_cli import failed, misused, ok

pytest.importorskip("torch")


def report(model: str) -> Any:
    return json.loads(ok("analyze", model, "--format", "json"))


def test_timm() -> None:
    timm = pytest.importorskip("timm")
    found = report("timm:resnet18@batch=2")
    assert found["totals"]["parameters"] == sum(p.numel() for p in timm.create_model("resnet18").parameters())
    assert (
        3.6e9 < found["totals"]["matrix_flops"] / 2 < 3.7e9
    )  # 1.82 GMACs for an image of 224, as its paper says
    assert "resnet200" in failed("analyze", "timm:resnet00")


def test_image_size() -> None:
    pytest.importorskip("timm")
    # 14 x 14 patches and a class token, against 8 x 8 and one
    small, large = (report(f"timm:vit_tiny_patch16_224@image_size={size}") for size in (128, 224))
    assert large["totals"]["parameters"] - small["totals"]["parameters"] == (196 - 64) * 192


def test_torchvision() -> None:
    torchvision = pytest.importorskip("torchvision")
    found = report("torchvision:mobilenet_v3_small@dynamic=batch")
    mine = torchvision.models.mobilenet_v3_small()
    assert found["totals"]["parameters"] == sum(p.numel() for p in mine.parameters())
    assert "backbone" in failed("analyze", "torchvision:fasterrcnn_resnet50_fpn")
    assert "no cache" in misused("analyze", "torchvision:resnet18@cache=static")
