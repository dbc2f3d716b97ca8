"""Architectures of torchvision, on the meta device: pictures, segmentation, detection, video, optical flow."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from tests.oracle.zoo.case import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.oracle.zoo.case import Sizes

# torchvision's operators, for installations whose kernels do not load (built for CUDA, beside a torch that is not):
# exporting and counting need schemas alone.
_SCHEMAS = """
nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor
qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor
box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor
roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio,
 bool aligned) -> Tensor
_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,
 SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor
qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, int rois_zero_point,
 float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor
roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor, Tensor)
_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height,
 SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor
ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,
 int sampling_ratio) -> (Tensor, Tensor)
_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height,
 SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor
ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width)
 -> (Tensor, Tensor)
_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height,
 SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor
deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w,
 SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups,
 bool use_mask) -> Tensor
_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias,
 SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups,
 SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)
"""
_library: torch.library.Library | None = None


def torchvision_operators() -> None:
    """Make `import torchvision` work where its kernels do not load."""
    global _library
    try:
        import torchvision
    except RuntimeError:
        _library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS.replace("\n ", " ").strip().splitlines():
            _library.define(schema)
        import torchvision  # noqa: F401


# One or two of each family.
FEW = (
    *(
        "alexnet",
        "vgg11_bn",
        "resnet18",
        "resnext50_32x4d",
        "wide_resnet50_2",
        "densenet121",
        "squeezenet1_0",
        "googlenet",
    ),
    *(
        "inception_v3",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "efficientnet_b0",
        "efficientnet_v2_s",
        "regnet_y_400mf",
    ),
    *("mnasnet0_5", "shufflenet_v2_x0_5", "convnext_tiny", "vit_b_32", "swin_t", "swin_v2_t", "maxvit_t"),
    *("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"),
    *(
        "r3d_18",
        "mc3_18",
        "r2plus1d_18",
        "s3d",
        "mvit_v1_b",
        "raft_small",
        "fasterrcnn_mobilenet_v3_large_fpn",
        "ssdlite320_mobilenet_v3_large",
    ),
)


def cases() -> Iterator[Case]:
    """One or two models of each family."""
    return (case for case in everything() if case.name.partition("/")[2] in FEW or case.name.count("/") > 1)


def everything() -> Iterator[Case]:
    """Every registered model, and parts that are used by themselves."""
    torchvision_operators()
    from torchvision import models

    for name in models.list_models(models):
        wide = "vit_" in name or "swin" in name
        size = 75 if name == "inception_v3" else 224 if wide else 64
        yield architecture(name, lambda n, size=size: (torch.rand(n, 3, size, size),))
    for name in models.list_models(models.segmentation):
        yield architecture(name, lambda n: (torch.rand(n, 3, 64, 64),))
    for name in models.list_models(models.video):
        size = 224 if name.startswith(("mvit", "swin", "s3d")) else 112
        yield architecture(name, lambda n, size=size: (torch.rand(n, 3, 16, size, size),))
    for name in models.list_models(models.optical_flow):
        yield architecture(name, lambda n: (torch.rand(n, 3, 128, 128), torch.rand(n, 3, 128, 128), 2))
    for name in models.list_models(models.detection):
        yield architecture(name, lambda: ([torch.rand(3, 64, 64)],), ({},))
    yield from parts()


def architecture(
    name: str, inputs: Callable[..., Any], sizes: tuple[Sizes, ...] = ({"n": 2}, {"n": 3}, {"n": 8})
) -> Case:
    """A registered model; weights of a backbone would be downloaded, so there are none."""

    def build() -> torch.nn.Module:
        from torchvision import models

        parameters = inspect.signature(models.get_model_builder(name)).parameters
        options: dict[str, Any] = {"weights_backbone": None} if "weights_backbone" in parameters else {}
        if name in ("googlenet", "inception_v3"):
            options["init_weights"] = False
        if name.startswith("regnet"):  # which computes its widths with tensors
            with torch.device("cpu"):
                return models.get_model(name, weights=None).to("meta")
        return models.get_model(name, weights=None, **options)

    return Case(f"torchvision/{name}", build, inputs, sizes, meta=sizes != ({},))


def parts() -> Iterator[Case]:
    """What detectors are made of."""
    from torchvision import ops

    batches = ({"n": 2}, {"n": 3}, {"n": 8})
    yield Case(
        "torchvision/ops/FeaturePyramidNetwork",
        lambda: ops.FeaturePyramidNetwork([8, 16], 4),
        lambda n: ({"a": torch.rand(n, 8, 8, 8), "b": torch.rand(n, 16, 4, 4)},),
        batches,
        meta=True,
    )
    yield Case(
        "torchvision/ops/DeformConv2d",
        lambda: Deformed(),
        lambda n: (torch.rand(n, 4, 9, 9),),
        batches,
        expected=lambda n: 2 * n * (9 * 9) * (4 * 3 * 3) * (18 + 6),
        because="torch has no formula for deform_conv2d and counts 0",
        meta=True,
    )
    yield Case(
        "torchvision/ops/Regions",
        lambda: Regions(),
        lambda n: (torch.rand(n, 8, 16, 16), torch.rand(5, 5)),
        batches,
        meta=True,
    )


class Deformed(torch.nn.Module):
    """A convolution whose taps another one moves."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision import ops

        self.offsets = torch.nn.Conv2d(4, 18, 3, padding=1)
        self.moved = ops.DeformConv2d(4, 6, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.moved(x, self.offsets(x))


class Regions(torch.nn.Module):
    """The four ways of cutting boxes out of features."""

    def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from torchvision import ops

        return (
            ops.roi_align(x, boxes, (4, 4), sampling_ratio=2),
            ops.roi_pool(x, boxes, (4, 4)),
            ops.ps_roi_align(x, boxes, (2, 2), sampling_ratio=2),
            ops.ps_roi_pool(x, boxes, (2, 2)),
        )
