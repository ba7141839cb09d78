#!/usr/bin/env python3
"""Writes autocast.json: the op lists of torch.amp, and one training step of a small net under torch.autocast on the CPU.

Needs torch. `exact` is the same step in f64.
"""

import contextlib
import json
import math
import pathlib
import re

import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent


def table(shape, phase):
    count = math.prod(shape)
    values = [math.sin(0.7 * i + phase) * 0.5 for i in range(count)]
    # Through f32, so that every precision starts from the numbers that the Rust test holds.
    return torch.tensor(values, dtype=torch.float64).float().reshape(shape)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)
        with torch.no_grad():
            self.conv.weight.copy_(table((4, 2, 3, 3), 0.1))
            self.norm.weight.copy_(1 + table((4,), 0.3))
            self.norm.bias.copy_(table((4,), 0.4))
            self.fc.weight.copy_(table((4, 3), 0.5).T)
            self.fc.bias.copy_(table((3,), 0.6))

    def forward(self, images):
        x = torch.relu(self.norm(self.conv(images)))
        return self.fc(x.to(self.norm.weight.dtype).mean((2, 3)))


def step(dtype):
    torch.manual_seed(0)
    net, images = Net(), table((5, 2, 6, 6), 0.7)
    if dtype is None:
        net, images = net.double(), images.double()
    context = contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)
    with context:
        logits = net(images)
        loss = F.cross_entropy(logits.to(net.fc.weight.dtype), torch.tensor([0, 2, 1, 1, 0]))
    loss.backward()
    found = {"logits": logits, "loss": loss, "running_mean": net.norm.running_mean, "running_var": net.norm.running_var}
    found["fc.weight"] = net.fc.weight.grad.T
    for name in ["conv.weight", "norm.weight", "norm.bias", "fc.bias"]:
        found[name] = net.get_parameter(name).grad
    return {name: [float(f"{v:.9g}") for v in tensor.double().flatten().tolist()] for name, tensor in found.items()}


def ops():
    header = (pathlib.Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    header = header.replace("\\\n", " ")

    def listed(macro):
        line = re.search(rf"#define {macro}\(_\)(.*)", header).group(1)
        return sorted(set(re.findall(r"_\((\w+)", line)))

    return {
        "half": listed("AT_FORALL_LOWER_PRECISION_FP"),
        "full": listed("AT_FORALL_FP32") + listed("AT_FORALL_FP32_SET_OPT_DTYPE"),
    }


reference = {
    "torch": torch.__version__.split("+")[0],
    "ops": ops(),
    "exact": step(None),
    "bf16": step(torch.bfloat16),
    "f16": step(torch.float16),
}
(HERE / "autocast.json").write_text(json.dumps(reference, indent=None, separators=(",", ":")) + "\n")
for half in ["bf16", "f16"]:
    for name, exact in reference["exact"].items():
        error = max(abs(a - b) for a, b in zip(reference[half][name], exact)) / max(map(abs, exact))
        print(f"{half:5} {name:13} {error:.1e}")
