"""Writes batch_norm.json: PyTorch's BatchNorm, in float64, on the joined batches of several ranks.

    python make.py

Inputs and output gradients are formulas that the tests in sync_batch_norm repeat. Ranks may differ in every size but
the channels, so what is joined is the list of values of each channel: a batch norm does not look further.
"""

import json
import pathlib

import numpy as np
import torch

CHANNELS = 3
GAMMA = [0.5, -1.5, 2.0]
BETA = [0.125, -0.25, 0.5]

# name, element type of input and output gradient, what is added to the input, the shape of each rank's batch
CASES = [
    ("one rank", "f32", 0.0, [(6, 3, 2, 2)]),
    ("2-D", "f32", 0.0, [(4, 3), (2, 3)]),
    ("3-D", "f32", 0.0, [(2, 3, 4), (1, 3, 4)]),
    ("4-D, batches of 1 and 7", "f32", 0.0, [(1, 3, 2, 2), (7, 3, 2, 2)]),
    ("4-D, other heights and widths", "f32", 0.0, [(2, 3, 3, 1), (1, 3, 2, 4), (3, 3, 1, 1)]),
    ("5-D, four ranks", "f32", 0.0, [(1, 3, 2, 1, 2)] * 4),
    ("an empty batch first", "f32", 0.0, [(0, 3, 2, 2), (5, 3, 2, 2)]),
    ("an empty batch between", "f32", 0.0, [(2, 3, 2), (3, 3, 0), (1, 3, 2)]),
    ("one value per channel and rank", "f32", 0.0, [(1, 3, 1, 1), (1, 3, 1, 1)]),
    ("a mean far from zero", "f32", 512.0, [(3, 3, 2, 2), (2, 3, 2, 2)]),
    ("f64", "f64", 512.0, [(3, 3, 2, 2), (2, 3, 2, 2)]),
    ("f16", "f16", 0.0, [(3, 3, 2, 2), (2, 3, 2, 2)]),
    ("bf16", "bf16", 0.0, [(3, 3, 2, 2), (2, 3, 2, 2)]),
]
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def uniform(seed, count):
    """`count` values in [-1, 1), multiples of 2^-8 so that every element type but bf16 holds them exactly."""
    indices = np.arange(1, count + 1, dtype=np.uint64)
    hashed = (indices * np.uint64(2654435761) + np.uint64(seed * 40503)) % np.uint64(1 << 32)
    return (hashed >> np.uint64(23)).astype(np.float64) / 256.0 - 1.0


def parts(flat, shapes):
    """Cuts the values into the ranks' batches."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    return [torch.from_numpy(part.copy()).reshape(shape) for part, shape in zip(np.split(flat, np.cumsum(sizes)[:-1]), shapes)]


def by_channel(batches):
    """`[1, channels, values]` of all batches."""
    return torch.cat([batch.transpose(0, 1).reshape(CHANNELS, -1) for batch in batches], dim=1)[None]


def by_rank(joined, shapes):
    """The reverse of `by_channel`: one flat list, each rank's values in the order of its batch."""
    values, start = [], 0
    for shape in shapes:
        count = int(np.prod(shape)) // CHANNELS
        part = joined[0, :, start:start + count].reshape(CHANNELS, shape[0], *shape[2:]).transpose(0, 1)
        values += part.flatten().tolist()
        start += count
    return values


def case(name, dtype, offset, shapes):
    count = sum(int(np.prod(shape)) for shape in shapes)
    rounded = lambda seed, offset: torch.from_numpy(uniform(seed, count) + offset).to(TYPES[dtype]).double().numpy()
    x = by_channel(parts(rounded(1, offset), shapes)).requires_grad_()
    norm = torch.nn.BatchNorm1d(CHANNELS).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(GAMMA))
        norm.bias.copy_(torch.tensor(BETA))
    y = norm(x)
    y.backward(by_channel(parts(rounded(2, 0.0), shapes)))
    return {
        "name": name,
        "dtype": dtype,
        "offset": offset,
        "shapes": shapes,
        "output": by_rank(y.detach(), shapes),
        "input_gradient": by_rank(x.grad, shapes),
        "gamma_gradient": norm.weight.grad.tolist(),
        "beta_gradient": norm.bias.grad.tolist(),
        "running_mean": norm.running_mean.tolist(),
        "running_var": norm.running_var.tolist(),
    }


cases = ",\n".join(json.dumps(case(*arguments)) for arguments in CASES)
text = '{"torch": "%s", "gamma": %s, "beta": %s, "cases": [\n%s\n]}\n' % (torch.__version__, GAMMA, BETA, cases)
(pathlib.Path(__file__).parent / "batch_norm.json").write_text(text)
