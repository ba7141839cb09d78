"""Trains torchvision's ResNet under torch.amp and prints the speed as JSON: PRECISION MODEL DEVICE BATCH SIZE STEPS."""

import json
import statistics
import sys
import time

import torch
import torchvision

precision, name, device = sys.argv[1:4]
batch, size, steps = map(int, sys.argv[4:7])
dtype = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}[precision]
torch.backends.cudnn.benchmark = True
# CubeCL's autotuner takes TF32 for f32 where the GPU has it, so both sides may.
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

model = torchvision.models.get_model(name, num_classes=10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
images = torch.randn(batch, 3, size, size, device=device)
labels = torch.randint(0, 10, (batch,), device=device)

seconds = []
for _ in range(steps):
    started = time.perf_counter()
    with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    loss = loss.item()
    seconds.append(time.perf_counter() - started)
# The first steps choose kernels.
median = statistics.median(seconds[min(5, steps // 2):])
figures = {
    "side": "torch", "precision": precision, "images_per_second": batch / median, "step_seconds_median": median,
    "loss": loss, "torch": torch.__version__,
}
print(json.dumps({
    "check": f"torch-training-{precision}", "device": device, "result": "passed", "why": None, "seconds": None,
    "figures": figures,
}))
