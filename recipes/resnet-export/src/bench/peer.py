"""Runs an exported network by Python's engines, by the orders that come on stdin. usage: peer.py ENGINE THREADS FOLDER

An order and its answer are a line each; see worker.rs, which answers the same ones.
"""

import importlib.util
import json
import os
import sys
import time


def answer(**values):
    print(json.dumps(values), flush=True)


def peak_bytes():
    # Not getrusage's ru_maxrss: of a process that shared its parent's memory until exec, it begins at the parent's peak.
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def folder_bytes(*packages):
    total = 0
    for package in packages:
        for place in importlib.util.find_spec(package).submodule_search_locations:
            for root, _, files in os.walk(place):
                total += sum(os.lstat(os.path.join(root, file)).st_size for file in files)
    return total


def onnxruntime_engine(threads, folder):
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name

    def load(values, shape):
        return numpy.asarray(values, dtype=numpy.float32).reshape(shape)

    def run(images):
        return session.run(None, {name: images})[0]

    return f"onnxruntime {onnxruntime.__version__} (Python)", load, run, folder_bytes("onnxruntime", "numpy")


def torch_engine(threads, folder, script):
    import torch
    import torchvision
    from safetensors.torch import load_file

    torch.set_num_threads(threads)
    with open(os.path.join(folder, "manifest.json")) as file:
        config = json.load(file)["metrics"]["architecture"]
    with open(os.path.join(folder, "preprocess.json")) as file:
        channels, height, width = json.load(file)["input"]
    model = getattr(torchvision.models, config["depth"])(num_classes=config["num_classes"])
    if config["stem"] == "cifar":
        model.conv1 = torch.nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        model.maxpool = torch.nn.Identity()
    # Weights that are stored in half precision are computed with in f32, as by all others.
    weights = {name: value.float() for name, value in load_file(os.path.join(folder, "model.safetensors")).items()}
    missing = model.load_state_dict(weights, strict=False)
    missing_weights = [name for name in missing.missing_keys if not name.endswith("num_batches_tracked")]
    assert not missing_weights and not missing.unexpected_keys, missing
    model.eval()
    if script:
        model = torch.jit.freeze(torch.jit.trace(model, torch.zeros(1, channels, height, width)))

    def load(values, shape):
        return torch.tensor(values, dtype=torch.float32).reshape(shape)

    def run(images):
        with torch.no_grad():
            return model(images)

    name = f"torch {torch.__version__}" + (", TorchScript" if script else "")
    return name, load, run, folder_bytes("torch", "torchvision", "numpy")


def main():
    engine, threads, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    start = time.perf_counter()
    if engine == "onnxruntime":
        name, load, run, deploy_bytes = onnxruntime_engine(threads, folder)
    else:
        name, load, run, deploy_bytes = torch_engine(threads, folder, engine == "torchscript")
    with open(os.path.join(folder, "preprocess.json")) as file:
        shape = json.load(file)["input"]
    answer(name=name, load_seconds=time.perf_counter() - start, deploy_bytes=deploy_bytes)

    def images(batch):
        count = shape[0] * shape[1] * shape[2]
        return load([i % 251 / 125.5 - 1.0 for i in range(count)] * batch, [batch, *shape])

    for line in sys.stdin:
        order, *words = line.split()
        if order == "logits":
            answer(logits=[float(value) for value in run(images(1))[0]])
        elif order == "run":
            values, seconds = images(int(words[0])), []
            run(values)
            end = time.perf_counter() + float(words[1])
            while not seconds or time.perf_counter() < end:
                start = time.perf_counter()
                run(values)
                seconds.append(time.perf_counter() - start)
            answer(seconds=seconds)
        elif order == "memory":
            answer(peak_bytes=peak_bytes())


try:
    main()
except Exception as error:
    answer(error=f"{type(error).__name__}: {error}".replace("\n", " "))
    sys.exit(1)
