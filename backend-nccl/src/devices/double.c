// A double of libnvidia-ml.so.1 and libcuda.so.1 for tests: what they answer on a machine with three GPUs, of which the third is
// divided into MIG instances, in the layout of nvml.h and cuda.h.

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *uuid, *name, *bus;
    unsigned index, mode, is_divided;
} device;

static device devices[4] = {
    {"GPU-aaaaaaaa-0000-0000-0000-000000000000", "NVIDIA H200", "00000000:3B:00.0", 0, 0, 0},
    {"GPU-bbbbbbbb-0000-0000-0000-000000000000", "NVIDIA H200", "00000000:5E:00.0", 1, 3, 0},
    {"GPU-cccccccc-0000-0000-0000-000000000000", "NVIDIA H200", "00000000:AF:00.0", 2, 0, 1},
    {"MIG-dddddddd-0000-0000-0000-000000000000", "NVIDIA H200 MIG 1g.18gb", 0, 0, 0, 0},
};

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

static int is_instance(device *d) { return d == &devices[3]; }

unsigned nvmlInitWithFlags(unsigned flags) {
#ifdef NVML_HANGS
    sleep(3);
#endif
#ifdef NVML_HAS_NO_DRIVER
    return 9;
#endif
    return flags == 1 ? SUCCESS : INVALID_ARGUMENT;
}
unsigned nvmlShutdown(void) { return SUCCESS; }
unsigned nvmlSystemGetDriverVersion(char *text, unsigned bytes) {
    snprintf(text, bytes, "570.86.15");
    return SUCCESS;
}
unsigned nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 12080, SUCCESS; }
unsigned nvmlDeviceGetCount_v2(unsigned *count) { return *count = 3, SUCCESS; }
unsigned nvmlDeviceGetHandleByIndex_v2(unsigned index, device **d) {
    if (index > 2) return INVALID_ARGUMENT;
    return *d = &devices[index], SUCCESS;
}
unsigned nvmlDeviceGetIndex(device *d, unsigned *index) { return *index = d->index, SUCCESS; }
unsigned nvmlDeviceGetUUID(device *d, char *text, unsigned bytes) {
    snprintf(text, bytes, "%s", d->uuid);
    return SUCCESS;
}
unsigned nvmlDeviceGetName(device *d, char *text, unsigned bytes) {
    snprintf(text, bytes, "%s", d->name);
    return SUCCESS;
}
unsigned nvmlDeviceGetPciInfo_v3(device *d, pci *info) {
    if (is_instance(d)) return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", d->bus);
    return SUCCESS;
}
unsigned nvmlDeviceGetMemoryInfo_v2(device *d, memory *m) {
    if (m->version != (sizeof(memory) | 2u << 24)) return INVALID_ARGUMENT;
    m->total = (is_instance(d) ? 18ull : 140ull) << 30;
    m->used = d == &devices[0] ? 12ull << 30 : 1ull << 20;
    m->free = m->total - m->used;
    return SUCCESS;
}
unsigned nvmlDeviceGetUtilizationRates(device *d, unsigned *rates) {
    if (d->is_divided || is_instance(d)) return NOT_SUPPORTED;
    rates[0] = d == &devices[0] ? 97 : 0;
    rates[1] = 5;
    return SUCCESS;
}
unsigned nvmlDeviceGetComputeMode(device *d, unsigned *mode) { return *mode = d->mode, SUCCESS; }
unsigned nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process *list) {
    if (d != &devices[0]) return *count = 0, SUCCESS;
    if (*count < 3 || !list) return *count = 3, INSUFFICIENT_SIZE;
    *count = 3;
    // This process, its parent, and one in another container.
    process all[3] = {{getpid(), 1ull << 30, -1, -1}, {getppid(), 11ull << 30, -1, -1}, {0x7ffffff0, -1ull, -1, -1}};
    memcpy(list, all, sizeof all);
    return SUCCESS;
}
unsigned nvmlDeviceGetCpuAffinity(device *d, unsigned words, unsigned long *mask) {
    if (words < 1) return INSUFFICIENT_SIZE;
    mask[0] = d == &devices[2] ? 0xffff0000ul : 0xfffful;
    return SUCCESS;
}
unsigned nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    return *current = *pending = d->is_divided, SUCCESS;
}
unsigned nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { return *count = d->is_divided ? 7 : 0, SUCCESS; }
unsigned nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **instance) {
    if (!d->is_divided || index != 1) return NOT_FOUND;
    return *instance = &devices[3], SUCCESS;
}
unsigned nvmlDeviceGetGpuInstanceId(device *d, unsigned *id) { return *id = 9, is_instance(d) ? SUCCESS : NOT_FOUND; }
unsigned nvmlDeviceGetComputeInstanceId(device *d, unsigned *id) { return *id = 0, is_instance(d) ? SUCCESS : NOT_FOUND; }

static int have_nvlink(device *a, device *b) { return a->index + b->index == 1; }

unsigned nvmlDeviceGetP2PStatus(device *a, device *b, unsigned capability, unsigned *status) {
    // 0 is reading, 2 is NVLink; status 5 is not supported.
    *status = have_nvlink(a, b) && (capability == 0 || capability == 2) ? 0 : 5;
    return SUCCESS;
}
unsigned nvmlDeviceGetTopologyCommonAncestor(device *a, device *b, unsigned *level) { return *level = 50, SUCCESS; }
unsigned nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *active) {
    if (link >= 4) return INVALID_ARGUMENT;
    // The third link of each is down.
    return *active = d->index < 2 && link != 2, SUCCESS;
}
unsigned nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, pci *info) {
    memset(info, 0, sizeof *info);
    // The fourth goes elsewhere.
    snprintf(info->bus_id, sizeof info->bus_id, "%s", link == 3 ? "00000000:FF:00.0" : devices[1 - d->index].bus);
    return SUCCESS;
}

int cuInit(unsigned flags) {
#ifdef CUDA_SHOWS_NOTHING
    return 100;
#endif
    return flags == 0 ? 0 : 1;
}
int cuDriverGetVersion(int *version) { return *version = 12080, 0; }
int cuDeviceGetCount(int *count) { return *count = 2, 0; }
int cuDeviceGet(int *d, int ordinal) { return *d = 10 + ordinal, ordinal < 2 ? 0 : 101; }
// Ordinal 0 is the second GPU of NVML, ordinal 1 the MIG instance.
int cuDeviceGetName(char *text, int bytes, int d) {
    snprintf(text, bytes, "%s", d == 10 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb");
    return 0;
}
int cuDeviceGetPCIBusId(char *text, int bytes, int d) {
    snprintf(text, bytes, "%s", d == 10 ? "0000:5E:00.0" : "0000:AF:00.0");
    return 0;
}
#ifdef CUDA_IS_OLD
int cuDeviceGetUuid(unsigned char *uuid, int d)
#else
int cuDeviceGetUuid_v2(unsigned char *uuid, int d)
#endif
{
    memset(uuid, 0, 16);
    memset(uuid, d == 10 ? 0xbb : 0xdd, 4);
    return 0;
}
