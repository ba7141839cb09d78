"""Seconds of torch.distributed's all-reduce over gloo, by the orders that the parent gives. Runs under torchrun."""

import os
import resource
import socket
import sys
import time

import torch
import torch.distributed as dist


def cpu_now():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def all_reduce(size, samples, calls):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    values = torch.full((size // 4,), rank + 1.0)
    dist.all_reduce(values)
    assert bool((values == ranks * (ranks + 1) / 2).all()), "wrong sum"
    seconds, cpu_seconds = [], 0.0
    for _ in range(samples):
        # A training has just written what it reduces.
        values.fill_(rank + 1.0)
        dist.barrier()
        start, cpu = time.perf_counter(), cpu_now()
        for _ in range(calls):
            dist.all_reduce(values)
        seconds.append((time.perf_counter() - start) / calls)
        cpu_seconds += cpu_now() - cpu
    return [cpu_seconds / (samples * calls), *seconds]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    host, port = sys.argv[1].rsplit(":", 1)
    with socket.create_connection((host, int(port))) as parent, parent.makefile("rw") as lines:
        lines.write(f"{os.environ['RANK']}\n")
        lines.flush()
        for line in lines:
            _, _, size, samples, calls = line.split()
            numbers = all_reduce(int(size), int(samples), int(calls))
            lines.write(" ".join(f"{number:.9f}" for number in numbers) + "\n")
            lines.flush()
    dist.destroy_process_group()


main()
