#!/usr/bin/env python3
"""Writes the torchvision references that models/tests compare with. usage: make.py [OUT_DIR]

Needs torch, torchvision and numpy. No weight is stored: each value comes from `uniform` below, which the Rust tests
repeat, so that both sides hold bit-equal f32 weights. The networks then run in f64, so a file states the true value
and the tolerance of a test is that of our f32 alone.
"""

import hashlib
import json
import math
import pathlib
import sys

import numpy
import torch
import torchvision

OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
CLASSES = 10
LABELS = [3, 7]
MASK = (1 << 64) - 1
GRADIENTS_OF = [
    "conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
    "layer2.0.downsample.1.weight", "layer3.1.conv2.weight", "layer4.1.bn2.bias", "fc.weight", "fc.bias",
]


def uniform(name, count):
    """`count` values in [-1, 1): splitmix64 over the index, seeded with FNV-1a of the name; 24 bits, exact in f32."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & MASK
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(40)).astype(numpy.float64) / 2.0**23 - 1.0


def value(key, shape):
    """A weight: around the usual initialisation, so that activations neither vanish nor explode."""
    u = uniform(key, math.prod(shape))
    if key.endswith("running_mean"):
        v = 0.1 * u
    elif key.endswith("running_var"):
        v = 1.0 + 0.5 * u
    elif len(shape) > 1:
        v = u * math.sqrt(6.0 / math.prod(shape[1:]))
    elif key.endswith("bias"):
        v = 0.1 * u
    else:
        v = 0.75 + 0.25 * u
    return torch.from_numpy(v.astype(numpy.float32)).reshape(shape)


def build(name, stem):
    model = getattr(torchvision.models, name)(num_classes=CLASSES)
    if stem == "cifar":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = torch.nn.Identity()
    state = {k: value(k, v.shape) for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    model.load_state_dict(state, strict=False)
    return model.double()


def case(name, stem, size):
    model = build(name, stem)
    shape = [len(LABELS), 3, size, size]
    images = torch.from_numpy(uniform("images", math.prod(shape)).astype(numpy.float32)).double().reshape(shape)
    model.eval()
    with torch.no_grad():
        eval_logits = model(images)
    model.train()
    train_logits = model(images)
    torch.nn.functional.cross_entropy(train_logits, torch.tensor(LABELS)).backward()
    norms = {k: p.grad.norm().item() for k, p in model.named_parameters() if k in GRADIENTS_OF}
    return {
        "stem": stem,
        "images": shape,
        "eval_logits": eval_logits.tolist(),
        "train_logits": train_logits.tolist(),
        "gradient_norms": norms if name == "resnet18" else {},
    }


def keys(name):
    """The tensors that count, one a line: key, then shape."""
    state = getattr(torchvision.models, name)().state_dict()
    lines = (" ".join([k, *map(str, v.shape)]) for k, v in state.items() if not k.endswith("num_batches_tracked"))
    return "".join(line + "\n" for line in lines)


def main():
    for name in ("resnet18", "resnet50"):
        cases = [case(name, "imagenet", 64), case(name, "cifar", 16)]
        reference = {"made_with": [torch.__version__, torchvision.__version__], "labels": LABELS, "cases": cases}
        (OUT / f"{name}.json").write_text(json.dumps(reference, indent=1) + "\n")
        (OUT / f"{name}.keys").write_text(keys(name))
    family = {}
    for depth in (18, 34, 50, 101, 152):
        name = f"resnet{depth}"
        parameters = sum(p.numel() for p in getattr(torchvision.models, name)().parameters())
        family[name] = {"parameters": parameters, "keys_sha256": hashlib.sha256(keys(name).encode()).hexdigest()}
    (OUT / "family.json").write_text(json.dumps(family, indent=1) + "\n")


if __name__ == "__main__":
    main()
