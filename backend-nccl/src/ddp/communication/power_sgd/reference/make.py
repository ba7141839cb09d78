"""Writes power_sgd.json: PyTorch's powerSGD_hook, in float64, on two gloo ranks.

    python make.py

Gradients and the first directions are formulas that tests.rs repeats. The hook is called with a bucket of our own, so that
the contents and the first Q are known; Q is put where a warm start finds it.
"""

import json
import os
import pathlib
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

RANKS = 2
STEPS = 5
SHAPES = [(6, 4, 3), (5,), (9, 8), (3, 2)]
# name, columns, whole steps, smallest compression rate, error feedback
CASES = [
    ("rank 1", 1, 0, 2.0, True),
    ("rank 2 after two whole steps", 2, 2, 1.0, True),
    ("rank 3", 3, 0, 1.0, True),
    ("rank 2 without error feedback", 2, 0, 1.0, False),
    ("rank 20, which is more than any matrix has", 20, 0, 1e-3, True),
]


def uniform(seed, count):
    """`count` values in [-1, 1), multiples of 2^-8."""
    indices = np.arange(1, count + 1, dtype=np.uint64)
    hashed = (indices * np.uint64(2654435761) + np.uint64(seed * 40503)) % np.uint64(1 << 32)
    return torch.from_numpy((hashed >> np.uint64(23)).astype(np.float64) / 256.0 - 1.0)


def gradient(rank, step, tensor):
    """A slowly changing part that all ranks share, and noise of the rank's own."""
    count = int(np.prod(SHAPES[tensor]))
    return uniform(100 + tensor, count) * (1 + step / 4) + uniform(1000 + 100 * rank + 10 * step + tensor, count)


class Bucket:
    """What the hook asks of a bucket."""

    def __init__(self, tensors):
        self.flat = torch.cat(tensors)
        sizes = [int(np.prod(shape)) for shape in SHAPES]
        self.parts = [part.view(shape) for part, shape in zip(self.flat.split(sizes), SHAPES)]

    def buffer(self):
        return self.flat

    def gradients(self):
        return self.parts

    def index(self):
        return 0

    def is_last(self):
        return True


def digits(tensor):
    """Enough digits for a comparison in f32."""
    return [float(f"{value:.9g}") for value in tensor.tolist()]


def first_directions(state):
    """Columns of each compressed matrix, one row after the other as PyTorch stores them; and the length of P."""
    columns, rows = [], 0
    for tensor, shape in enumerate(SHAPES):
        n, m = shape[0], int(np.prod(shape[1:]))
        rank = min(n, m, state.matrix_approximation_rank)
        if (n + m) * rank * state.min_compression_rate < n * m:
            columns.append(uniform(50 + tensor, m * rank))
            rows += n * rank
    return torch.cat(columns), rows


def run(rank, port, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    cases = []
    for name, columns, start, rate, feedback in CASES:
        # PyTorch demands two whole steps with what it remembers; they are no part of the algorithm.
        state = PowerSGDState(None, columns, max(start, 2), rate, feedback, True)
        state.iter = 2 - min(start, 2)
        directions, rows = first_directions(state)
        state.q_memory_dict[0], state.p_memory_dict[0] = directions, torch.zeros(rows, dtype=torch.float64)
        outputs = []
        for step in range(STEPS):
            bucket = Bucket([gradient(rank, step, tensor) for tensor in range(len(SHAPES))])
            result = powerSGD_hook(state, bucket)
            result.wait()
            flat = bucket.flat
            if state.iter <= state.start_powerSGD_iter and step < start:
                # The whole all-reduce gives its result by the future, divided already.
                flat = result.value()[0] if isinstance(result.value(), list) else result.value()
            outputs.append(digits(flat))
        error = state.error_dict.get(0, torch.zeros(0, dtype=torch.float64)).clone()
        dist.all_reduce(error)
        cases.append({
            "name": name, "rank": columns, "start_step": start, "min_compression_rate": rate,
            "error_feedback": feedback, "outputs": outputs, "mean_error": digits(error / RANKS),
        })
    if rank == 0:
        lines = ",\n".join(json.dumps(case) for case in cases)
        path.write_text('{"torch": "%s", "cases": [\n%s\n]}\n' % (torch.__version__, lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, (port, pathlib.Path(__file__).parent / "power_sgd.json"), RANKS)
