"""A ResNet-50 (v1.5: the stride is in the 3x3 convolution) in plain torch, for a static vision program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, added to the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """The published network: 25,557,032 parameters, 4.089 G multiply-adds at 224 x 224."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, inputs = [], 64
        for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
            stage = []
            for index in range(blocks):
                stage.append(Bottleneck(inputs, width, 2 if index == 0 and width != 64 else 1))
                inputs = 4 * width
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2048, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.stages(self.stem(image))).flatten(1))


def export_resnet50(path: Path) -> None:
    """Export at batch 1, on meta tensors."""
    with torch.device("meta"):
        program = torch.export.export(ResNet50().eval(), (torch.empty(1, 3, 224, 224),))
    torch.export.save(program, path)
