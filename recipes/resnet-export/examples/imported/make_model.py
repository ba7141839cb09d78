#!/usr/bin/env python3
"""Makes thin_resnet.onnx: a small network of torchvision's own ResNet class, trained on shapes that this script draws.

It stands for the file that somebody else gives you. Needs torch, torchvision and onnx; about a minute on two cores:

    python make_model.py [thin_resnet.onnx]

The seeds are fixed: the same versions on the same kind of processor write the same file (made with torch 2.15.0 and
torchvision 0.29.2).
"""
import math
import sys

import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

# torchvision's stages have 64, 128, 256 and 512 channels; these have an eighth.
THINNER = 8
BLOCKS = [1, 1, 1, 1]
SIDE = 32
CLASSES = ["disc", "ring", "square", "frame", "triangle", "plus", "cross", "bar"]
STEPS, BATCH, LEARNING_RATE = 800, 64, 0.1


class ThinResNet(ResNet):
    """torchvision's ResNet with narrow stages; blocks, names and forward pass are torchvision's."""

    def __init__(self):
        super().__init__(BasicBlock, BLOCKS, num_classes=len(CLASSES))
        width = 64 // THINNER
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.bn1 = nn.BatchNorm2d(width)
        self.fc = nn.Linear(512 // THINNER, len(CLASSES))

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        if planes == 64:
            self.inplanes = planes // THINNER
        return super()._make_layer(block, planes // THINNER, blocks, stride, dilate)


def draw(classes):
    """Draws one shape per class number: [batch, 3, SIDE, SIDE], of another size, place, turn and colour each time."""
    count = len(classes)
    uniform = lambda low, high: low + (high - low) * torch.rand(count, 1, 1)
    axis = torch.linspace(-1, 1, SIDE)
    turn = uniform(-0.3, 0.3)
    x, y = axis[None, None, :] - uniform(-0.3, 0.3), axis[None, :, None] - uniform(-0.3, 0.3)
    x, y = x * turn.cos() - y * turn.sin(), x * turn.sin() + y * turn.cos()
    size = uniform(0.35, 0.65)
    x, y = x / size, y / size
    radius, square = (x * x + y * y).sqrt(), torch.maximum(x.abs(), y.abs())
    plus = torch.maximum(torch.minimum(x.abs(), y.abs()) * 3, square)
    across, along = (x + y).abs() / math.sqrt(2), (x - y).abs() / math.sqrt(2)
    cross = torch.maximum(torch.minimum(across, along) * 3, torch.maximum(across, along))
    triangle = torch.maximum(y, x.abs() * 1.3 - y * 0.65 - 0.35)
    # Where a function is below 1 there is ink; hollow shapes have none where it is below 0.6.
    solid = [radius, radius, square, square, triangle + 0.3, plus, cross, torch.maximum(x.abs() * 4, y.abs())]
    outer = torch.stack([shape.expand(count, SIDE, SIDE) for shape in solid])[classes, torch.arange(count)]
    hollow = (classes == CLASSES.index("ring")) | (classes == CLASSES.index("frame"))
    ink = torch.sigmoid((1 - outer) * 12)
    ink = torch.where(hollow[:, None, None], ink * torch.sigmoid((outer - 0.6) * 12), ink)[:, None]
    ground, colour = 0.4 * torch.rand(count, 3, 1, 1), 0.6 + 0.4 * torch.rand(count, 3, 1, 1)
    image = ground + (colour - ground) * ink + 0.05 * torch.randn(count, 3, SIDE, SIDE)
    return (image.clamp(0, 1) - 0.5) / 0.25


def train():
    model = ThinResNet()
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    for step in range(STEPS):
        classes = torch.randint(len(CLASSES), (BATCH,))
        loss = nn.functional.cross_entropy(model(draw(classes)), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    return model.eval()


def export(model, path):
    """PRESERVE in evaluation mode: batch norms compute with their running statistics, and stay apart from the convolutions.

    With the default, EVAL, the exporter folds them into the convolutions, and nothing of them is left to train. The old
    exporter (dynamo=False) writes one file; the new one may put the weights beside it.
    """
    torch.onnx.export(model, (torch.zeros(1, 3, SIDE, SIDE),), path, dynamo=False, opset_version=18,
                      training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
                      input_names=["images"], output_names=["logits"],
                      dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}})


def main():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = train()
    with torch.no_grad():
        classes = torch.randint(len(CLASSES), (1000,))
        correct = (model(draw(classes)).argmax(1) == classes).float().mean().item()
    print(f"{correct:.1%} of 1000 new shapes, {sum(p.numel() for p in model.parameters())} parameters")
    export(model, sys.argv[1] if len(sys.argv) > 1 else "thin_resnet.onnx")


if __name__ == "__main__":
    main()
