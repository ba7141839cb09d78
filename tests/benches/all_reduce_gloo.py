"""Median seconds of torch.distributed's all-reduce over gloo; rank 0 prints `bytes seconds` lines. Needs torchrun."""

import statistics
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
for count in (256, 16_384, 262_144, 6_553_600, 25_600_000):
    values = torch.ones(count)
    for _ in range(3):
        dist.all_reduce(values)
    seconds = []
    for _ in range(11):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(count * 4, statistics.median(seconds), flush=True)
dist.destroy_process_group()
