"""Saves and loads ResNet-50's state_dict as PyTorch and safetensors do; driven line by line by records.rs.

usage: records_peer.py FOLDER. Reads `save torch`, `load torch`, `save safetensors` or `load safetensors`, and answers
with the seconds it took.
"""

import os
import sys
import time

import torch
import torchvision
from safetensors.torch import load_file, save_file

folder = sys.argv[1]
state = torchvision.models.resnet50().state_dict()
pth, safe = os.path.join(folder, "peer.pth"), os.path.join(folder, "peer.safetensors")
steps = {
    "save torch": lambda: torch.save(state, pth),
    "load torch": lambda: torch.load(pth, weights_only=True),
    "save safetensors": lambda: save_file(state, safe),
    "load safetensors": lambda: load_file(safe),
}
for line in sys.stdin:
    start = time.perf_counter()
    result = steps[line.strip()]()
    seconds = time.perf_counter() - start
    del result
    print(seconds, flush=True)
