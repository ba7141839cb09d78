#!/usr/bin/env python3
"""Writes scaling.json, what torch.amp.GradScaler and torch.nn.utils.clip_grad_norm_ do, for the tests.
usage: scaling.py [OUT_DIR]

Needs torch 2.4 or later, whose scaler runs on the CPU.
"""

import json
import pathlib
import random
import sys

import torch

OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
STEPS = 48
SETTINGS = [
    {},
    {"growth_interval": 3},
    {"growth_interval": 1, "init_scale": 2.0**125},
    {"growth_interval": 2, "growth_factor": 1.3, "backoff_factor": 0.7},
    {"growth_interval": 4, "growth_factor": 3.0, "backoff_factor": 0.1, "init_scale": 1.0},
]
GRADIENTS = {"weight": [[0.5, -1.5, 2.0], [0.0, 3.0, -0.25]], "bias": [-4.0, 0.125]}


def trace(number, settings):
    """The scale and tracker after each update, and the steps that were taken, for a random run of overflows."""
    generator = random.Random(number)
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", **settings)
    overflows, taken, scales, trackers = [], [], [], []
    for _ in range(STEPS):
        overflow = generator.random() < 0.15
        factor = generator.choice([float("inf"), float("nan")]) if overflow else 1.0
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        before = parameter.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        overflows.append(overflow)
        taken.append(not torch.equal(before, parameter.detach()))
        state = scaler.state_dict()
        scales.append(state["scale"])
        trackers.append(state["_growth_tracker"])
    return {"overflows": overflows, "taken": taken, "scales": scales, "trackers": trackers, "state": state}


def clipped(norm_type, max_norm):
    parameters = [torch.nn.Parameter(torch.zeros_like(torch.tensor(g))) for g in GRADIENTS.values()]
    for parameter, gradient in zip(parameters, GRADIENTS.values()):
        parameter.grad = torch.tensor(gradient)
    total = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)
    gradients = {name: p.grad.flatten().tolist() for name, p in zip(GRADIENTS, parameters)}
    return {"max_norm": max_norm, "total": total.item(), "gradients": gradients}


def main():
    norms = {"L1": 1.0, "L2": 2.0, "Max": float("inf")}
    golden = {
        "torch": torch.__version__.split("+")[0],
        "traces": [{"settings": s, **trace(n, s)} for n, s in enumerate(SETTINGS)],
        "gradients": GRADIENTS,
        "clipped": [{"norm": name, **clipped(p, m)} for name, p in norms.items() for m in (0.1, 1.0, 100.0)],
    }
    (OUT / "scaling.json").write_text(json.dumps(golden) + "\n")


main()
