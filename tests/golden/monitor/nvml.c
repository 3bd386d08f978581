/* A stand-in for libnvidia-ml.so.1 with two GPUs, of which the second tells neither power nor temperature.
   cc -shared -fPIC -o libnvidia-ml.so.1 nvml.c; with FAKE_NVML_HANG in the environment, a reading never comes back. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef int R;
typedef long D; /* the handle: index + 1 */
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7 };
R nvmlInitWithFlags(unsigned flags) { return OK; }
R nvmlInit_v2(void) { return OK; }
R nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(R r) { return r == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
R nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return OK; }
R nvmlDeviceGetHandleByIndex_v2(unsigned i, D *d) { *d = i + 1; return i < 2 ? OK : INVALID; }
R nvmlDeviceGetUUID(D d, char *text, unsigned n) { snprintf(text, n, "GPU-0000000%ld-aaaa-bbbb-cccc-dddddddddddd", d - 1); return OK; }
R nvmlDeviceGetName(D d, char *text, unsigned n) { snprintf(text, n, "NVIDIA Example"); return OK; }
R nvmlDeviceGetUtilizationRates(D d, unsigned *use) {
  if (getenv("FAKE_NVML_HANG")) for (;;) pause();
  use[0] = d == 1 ? 87 : 3; use[1] = 40; return OK;
}
R nvmlDeviceGetMemoryInfo_v2(D d, void *memory) {
  unsigned long long *v = (unsigned long long *)((char *)memory + 8); /* total, reserved, free, used */
  v[0] = 80ull << 30; v[1] = 1ull << 30; v[3] = (unsigned long long)d << 30; v[2] = v[0] - v[1] - v[3]; return OK;
}
R nvmlDeviceGetClockInfo(D d, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1410 : kind == 2 ? 1215 : 0; return OK; }
R nvmlDeviceGetPowerUsage(D d, unsigned *mw) { *mw = 251500; return d == 1 ? OK : NOT_SUPPORTED; }
R nvmlDeviceGetTemperature(D d, int sensor, unsigned *c) { *c = 61; return d == 1 ? OK : NOT_SUPPORTED; }
R nvmlDeviceGetCurrentClocksEventReasons(D d, unsigned long long *mask) { *mask = d == 1 ? 0x24 : 0x1; return OK; }
R nvmlDeviceGetPcieThroughput(D d, int way, unsigned *kbps) { *kbps = way == 0 ? 2000 : 5000; return OK; }
struct P { unsigned pid; unsigned long long used; unsigned gi, ci; };
R nvmlDeviceGetComputeRunningProcesses_v3(D d, unsigned *n, struct P *p) {
  if (d != 1) { *n = 0; return OK; }
  if (*n < 1 || !p) { *n = 1; return TOO_SMALL; }
  *n = 1; p->pid = 4711; p->used = 512ull << 20; p->gi = p->ci = ~0u; return OK;
}
R nvmlDeviceGetGraphicsRunningProcesses_v3(D d, unsigned *n, struct P *p) { *n = 0; return OK; }
