"""Every architecture that torchvision registers, on the meta device: pictures, segmentation, detection, video, optical flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from zoo.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def cases() -> Iterator[Case]:
    """Every registered model, as small a picture as it takes."""
    torchvision_operators()
    import torchvision
    from torchvision import models

    for name in models.list_models(models):
        yield picture(
            name, 75 if name == "inception_v3" else 64 if "vit_" not in name and "swin" not in name else 224
        )
    for name in models.list_models(models.segmentation):
        yield picture(name, 64)
    for name in models.list_models(models.video):
        yield video(name)
    for name in models.list_models(models.optical_flow):
        yield flow(name)
    for name in models.list_models(models.detection):
        yield detection(name)
    yield Case(
        "torchvision/feature_pyramid",
        lambda: torchvision.ops.FeaturePyramidNetwork([8, 16], 4),
        lambda n: ({"a": torch.rand(n, 8, 8, 8), "b": torch.rand(n, 16, 4, 4)},),
        ({"n": 2}, {"n": 3}, {"n": 7}),
        meta=True,
    )


def picture(name: str, size: int) -> Case:
    def build() -> torch.nn.Module:
        from torchvision import models

        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return models.get_model(name, weights=None, **options)

    return Case(
        f"torchvision/{name}",
        build,
        lambda n: (torch.rand(n, 3, size, size),),
        ({"n": 2}, {"n": 3}, {"n": 8}),
        meta=True,
    )


def video(name: str) -> Case:
    def build() -> torch.nn.Module:
        from torchvision import models

        return models.get_model(name, weights=None)

    frames, size = (16, 224) if "mvit" in name or "swin" in name else (16, 112)
    return Case(
        f"torchvision/{name}",
        build,
        lambda n: (torch.rand(n, 3, frames, size, size),),
        ({"n": 2}, {"n": 3}, {"n": 8}),
        meta=True,
    )


def flow(name: str) -> Case:
    def build() -> torch.nn.Module:
        from torchvision import models

        return models.get_model(name, weights=None)

    return Case(
        f"torchvision/{name}",
        build,
        lambda n: (torch.rand(n, 3, 128, 128), torch.rand(n, 3, 128, 128), 2),
        ({"n": 2}, {"n": 3}, {"n": 8}),
        meta=True,
    )


def detection(name: str) -> Case:
    def build() -> torch.nn.Module:
        from torchvision import models

        return models.get_model(name, weights=None, weights_backbone=None)

    return Case(f"torchvision/{name}", build, lambda: ([torch.rand(3, 64, 64)],))
