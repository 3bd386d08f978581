/* GPUs that are played: libnvidia-ml.so.1 and nvidia-smi over one file of settings, $FAKE_GPUS.
   cc -shared -fPIC -o libnvidia-ml.so.1 gpus.c; cc -DSMI -o nvidia-smi gpus.c.

   The file has lines KEY=TEXT for the machine and N.KEY=TEXT for GPU N; gpus.py has them all, with their meaning.
   A change is one rename, under a lock, so that whoever is killed in it leaves the old state or the new one. What
   nvidia-smi was asked stands in $FAKE_GPUS.calls, a line for each call. Texts and exit statuses as in the real tools. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, LOST = 15 };
typedef unsigned u;

/* ---------------------------------------------------------------- the settings */

static char text[1 << 16];

static const char *file(void) { const char *p = getenv("FAKE_GPUS"); return p ? p : "fake_gpus"; }

static void load(void) {
  int fd = open(file(), O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  text[n < 0 ? 0 : n] = 0;
  if (fd >= 0) close(fd);
}

/* The text of a setting, in a buffer of its own for a while; "" where there is none. */
static const char *get(int gpu, const char *key) {
  static char out[16][4096];
  static int turn;
  char name[96], *to = out[turn++ % 16];
  if (gpu < 0) snprintf(name, sizeof name, "\n%s=", key); else snprintf(name, sizeof name, "\n%d.%s=", gpu, key);
  const char *at = !strncmp(text, name + 1, strlen(name + 1)) ? text : strstr(text, name);
  *to = 0;
  if (at) {
    at = strchr(at + (*at == '\n'), '=') + 1;
    snprintf(to, 4096, "%.*s", (int)strcspn(at, "\n"), at);
  }
  return to;
}

static int num(int gpu, const char *key) { return atoi(get(gpu, key)); }
static int is(int gpu, const char *key, const char *value) { return !strcmp(get(gpu, key), value); }
static int count(void) { return num(-1, "count"); }

/* Whether a word stands in a list of words. */
static int among(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *at = list; (at = strstr(at, word)); at += n)
    if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
  return 0;
}

static void put(int gpu, const char *key, int value) {
  char lock[4096], next[4096], name[96], line[128];
  static char made[1 << 16];
  snprintf(lock, sizeof lock, "%s.lock", file());
  int held = open(lock, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  flock(held, LOCK_EX);
  load();
  snprintf(name, sizeof name, "%d.%s=", gpu, key);
  snprintf(line, sizeof line, "%s%d\n", name, value);
  *made = 0;
  int found = 0;
  for (char *at = text; *at;) {
    size_t n = strcspn(at, "\n") + 1;
    if (!strncmp(at, name, strlen(name))) { strcat(made, line); found = 1; } else strncat(made, at, n);
    at += strlen(at) < n ? strlen(at) : n;
  }
  if (!found) strcat(made, line);
  snprintf(next, sizeof next, "%s.%d", file(), getpid());
  int fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (write(fd, made, strlen(made)) > 0) rename(next, file());
  close(fd);
  close(held);
  load();
}

static void hang(void) { signal(SIGTERM, SIG_IGN); signal(SIGINT, SIG_IGN); for (;;) sleep(600); }

/* ---------------------------------------------------------------- what the hardware does */

static int na(int g, const char *field) { return among(get(g, "na"), field); }
static int loaded(int g) { return num(g, "util") > 0; }

static int sm_mhz(int g) {
  int locked = num(g, "lgc"), applications = num(g, "ac_gr"), step = 0, n = 0, values[16];
  const char *seen = get(g, "sm_sequence");
  if (!loaded(g)) return locked && num(g, "lock_at_idle") ? locked : num(g, "sm_idle");
  if (*seen) {
    char copy[4096]; snprintf(copy, sizeof copy, "%s", seen);
    for (char *word = strtok(copy, " "); word && n < 16; word = strtok(NULL, " ")) values[n++] = atoi(word);
    struct timeval t; gettimeofday(&t, NULL);
    step = (t.tv_sec * 20 + t.tv_usec / 50000) % n; /* each for 50 ms */
    return values[step];
  }
  return locked ? locked : applications ? applications : num(g, "sm_max");
}

static int mem_mhz(int g) {
  return num(g, "lmc") ? num(g, "lmc") : loaded(g) || num(g, "mem_idle") == 0 ? num(g, "mem_max") : num(g, "mem_idle");
}
static int pstate(int g) { return loaded(g) ? 0 : 8; }
static int reasons(int g) {
  if (!loaded(g)) return num(g, "lgc") && num(g, "lock_at_idle") ? 2 : 1;
  return (num(g, "lgc") || num(g, "ac_gr") ? 2 : 0) | num(g, "reasons");
}
static int allowed(void) { return (geteuid() == 0 || num(-1, "as_root")) && !num(-1, "deny"); }

/* Process n of a GPU: KIND:PID:MIB:NAME, separated by blanks. */
typedef struct { char kind; int pid; int mib; char name[256]; } Proc;
static int proc_at(int g, int n, Proc *p) {
  char copy[4096]; snprintf(copy, sizeof copy, "%s", get(g, "processes"));
  char *word = strtok(copy, " ");
  while (word && n--) word = strtok(NULL, " ");
  return word && sscanf(word, "%c:%d:%d:%255s", &p->kind, &p->pid, &p->mib, p->name) == 4;
}

#ifndef SMI
/* ---------------------------------------------------------------- NVML */

typedef int R;
typedef long D; /* the handle: index + 1; of part n of GPU g: 1000 * (n + 1) + g + 1 */
#define G ((int)((d - 1) % 1000))
#define SAY(type, field, value) { load(); if (na(G, field)) return NOT_SUPPORTED; *out = (type)(value); return OK; }

R nvmlInitWithFlags(u flags) { (void)flags; load(); if (num(-1, "nvml_hang")) hang(); return num(-1, "no_driver") ? NO_DRIVER : OK; }
R nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
R nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(R r) {
  return r == NOT_SUPPORTED ? "Not Supported" : r == NO_PERMISSION ? "Insufficient Permissions" : r == NO_DRIVER ? "Driver Not Loaded"
       : r == LOST ? "GPU is lost" : r == NOT_FOUND ? "Not Found" : "Unknown Error";
}
R nvmlSystemGetDriverVersion(char *out, u n) { snprintf(out, n, "%s", get(-1, "driver")); return OK; }
R nvmlSystemGetProcessName(u pid, char *out, u n) {
  Proc p;
  for (int g = 0; g < count(); g++)
    for (int i = 0; proc_at(g, i, &p); i++)
      if ((u)p.pid == pid) { snprintf(out, n, "%s", p.name); return OK; }
  return NOT_FOUND;
}
R nvmlDeviceGetCount_v2(u *out) { load(); *out = count(); return OK; }
R nvmlDeviceGetHandleByIndex_v2(u i, D *d) { *d = i + 1; return (int)i >= count() ? INVALID : num(i, "lost") ? LOST : OK; }
R nvmlDeviceGetUUID(D d, char *out, u n) {
  if (d < 1000) snprintf(out, n, "%s", get(G, "uuid")); else snprintf(out, n, "MIG-%ld%s", d / 1000 - 1, get(G, "uuid") + 5);
  return OK;
}
R nvmlDeviceGetName(D d, char *out, u n) { snprintf(out, n, "%s", get(G, "name")); return OK; }
R nvmlDeviceGetPciInfo_v3(D d, void *info) { memset(info, 0, 68); strcpy((char *)info + 36, get(G, "pci")); return OK; }
R nvmlDeviceGetCudaComputeCapability(D d, int *major, int *minor) { return sscanf(get(G, "compute_cap"), "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED; }
R nvmlDeviceGetPerformanceState(D d, int *out) SAY(int, "pstate", pstate(G))
R nvmlDeviceGetPersistenceMode(D d, int *out) SAY(int, "persistence_mode", num(G, "pm"))
R nvmlDeviceGetDisplayActive(D d, int *out) SAY(int, "display_active", num(G, "display"))
R nvmlDeviceGetTemperature(D d, int sensor, u *out) SAY(u, "temperature.gpu", num(G, "temperature") + 0 * sensor)
R nvmlDeviceGetTemperatureThreshold(D d, int which, u *out) SAY(u, "temperature.slowdown", num(G, "slowdown") + 0 * which)
R nvmlDeviceGetCurrentClocksEventReasons(D d, unsigned long long *out) SAY(unsigned, "clocks_event_reasons.active", reasons(G))
R nvmlDeviceGetClockInfo(D d, int kind, u *out) SAY(u, kind == 2 ? "clocks.mem" : "clocks.sm", kind == 2 ? mem_mhz(G) : sm_mhz(G))
R nvmlDeviceGetMaxClockInfo(D d, int kind, u *out) SAY(u, "clocks.max.sm", num(G, kind == 2 ? "mem_max" : "sm_max"))
R nvmlDeviceGetApplicationsClock(D d, int kind, u *out) SAY(u, "clocks.applications.gr", num(G, kind == 2 ? "ac_mem" : "ac_gr") ?: num(G, kind == 2 ? "default_mem" : "default_gr"))
R nvmlDeviceGetDefaultApplicationsClock(D d, int kind, u *out) SAY(u, "clocks.applications.gr", num(G, kind == 2 ? "default_mem" : "default_gr"))
R nvmlDeviceGetUtilizationRates(D d, u *out) {
  load();
  if (na(G, "utilization.gpu")) return NOT_SUPPORTED;
  out[0] = num(G, "util"); out[1] = out[0] / 2; return OK;
}
R nvmlDeviceGetPowerUsage(D d, u *out) SAY(u, "power.draw", loaded(G) ? 251500 : 52000)
R nvmlDeviceGetPcieThroughput(D d, int way, u *out) SAY(u, "pcie", 1000 + way)
R nvmlDeviceGetMemoryInfo_v2(D d, void *memory) {
  unsigned long long *v = (unsigned long long *)((char *)memory + 8); /* total, reserved, free, used */
  load();
  if (na(G, "memory.used")) return NOT_SUPPORTED;
  v[0] = (unsigned long long)num(G, "mem_total") << 20; v[1] = 0; v[3] = (unsigned long long)num(G, "mem_used") << 20; v[2] = v[0] - v[3];
  return OK;
}
R nvmlDeviceGetMigMode(D d, u *now, u *next) { *now = *next = num(G, "mig") > 0; return na(G, "mig.mode.current") ? NOT_SUPPORTED : OK; }
R nvmlDeviceGetMaxMigDeviceCount(D d, u *out) { *out = num(G, "mig") ? 7 : 0; return OK; }
R nvmlDeviceGetMigDeviceHandleByIndex(D d, u n, D *part) { *part = 1000 * (n + 1) + d; return (int)n < num(G, "mig") ? OK : NOT_FOUND; }
R nvmlDeviceGetSupportedMemoryClocks(D d, u *n, u *out) {
  int all[2] = {num(G, "mem_max"), num(G, "mem_idle")}, has = all[1] ? 2 : 1;
  if (na(G, "supported")) return NOT_SUPPORTED;
  if ((int)*n < has || !out) { *n = has; return TOO_SMALL; }
  for (*n = 0; (int)*n < has; ++*n) out[*n] = all[*n];
  return OK;
}
R nvmlDeviceGetSupportedGraphicsClocks(D d, u memory, u *n, u *out) {
  int from = num(G, "sm_max"), to = num(G, "sm_min"), has = (from - to) / 15 + 1;
  (void)memory;
  if ((int)*n < has || !out) { *n = has; return TOO_SMALL; }
  for (*n = 0; (int)*n < has; ++*n) out[*n] = from - 15 * *n;
  return OK;
}
typedef struct { u pid; unsigned long long used; u gi, ci; } P;
static R processes(int g, char kind, u *n, P *out) {
  Proc p;
  int has = 0, i;
  load();
  for (i = 0; proc_at(g, i, &p); i++) if (p.kind == kind) { if (out && has < (int)*n) out[has] = (P){p.pid, (unsigned long long)p.mib << 20, ~0u, ~0u}; has++; }
  i = *n; *n = has;
  return has && (!out || i < has) ? TOO_SMALL : OK;
}
R nvmlDeviceGetComputeRunningProcesses_v3(D d, u *n, P *out) { return processes(G, 'C', n, out); }
R nvmlDeviceGetGraphicsRunningProcesses_v3(D d, u *n, P *out) { return processes(G, 'G', n, out); }

#else
/* ---------------------------------------------------------------- nvidia-smi */

static const char *format = "";

static void note(int argc, char **argv) {
  char name[4096], line[8192] = "";
  snprintf(name, sizeof name, "%s.calls", file());
  for (int i = 1; i < argc; i++) { strncat(line, argv[i], 4000); strcat(line, i + 1 < argc ? " " : ""); }
  strcat(line, "\n");
  int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (write(fd, line, strlen(line)) < 0) exit(1);
  close(fd);
}

/* One cell of --query-gpu; 0 for a field that this version does not know. */
static int cell(int g, const char *f, char *to) {
  const char *unit = "";
  int value = -1;
  struct timeval t;
#define NUMBER(field, number, of) if (!strcmp(f, field)) { value = number; unit = of; }
#define WORDS(field, ...) if (!strcmp(f, field)) { sprintf(to, __VA_ARGS__); return na(g, field) ? sprintf(to, "%s", get(-1, "na_text")) : 1; }
#define SWITCH(field, on) WORDS(field, "%s", (on) ? "Enabled" : "Disabled")
  if (among(get(-1, "unknown_fields"), f)) return 0;
  if (!strcmp(f, "timestamp")) {
    gettimeofday(&t, NULL);
    size_t n = strftime(to, 64, "%Y/%m/%d %H:%M:%S", localtime(&t.tv_sec));
    sprintf(to + n, ".%03d", (int)(t.tv_usec / 1000));
    return 1;
  }
  WORDS("index", "%d", g) WORDS("uuid", "%s", get(g, "uuid")) WORDS("name", "%s", get(g, "name")) WORDS("pci.bus_id", "%s", get(g, "pci"))
  WORDS("driver_version", "%s", get(-1, "driver")) WORDS("compute_cap", "%s", get(g, "compute_cap")) WORDS("pstate", "P%d", pstate(g))
  SWITCH("persistence_mode", num(g, "pm")) SWITCH("display_active", num(g, "display")) SWITCH("mig.mode.current", num(g, "mig"))
  WORDS("clocks_event_reasons.active", "0x%016x", (u)reasons(g)) WORDS("clocks_throttle_reasons.active", "0x%016x", (u)reasons(g))
  WORDS("power.draw", "%s", loaded(g) ? "251.50" : "52.00")
  NUMBER("clocks.sm", sm_mhz(g), " MHz") NUMBER("clocks.gr", sm_mhz(g), " MHz") NUMBER("clocks.mem", mem_mhz(g), " MHz")
  NUMBER("clocks.max.sm", num(g, "sm_max"), " MHz") NUMBER("clocks.max.gr", num(g, "sm_max"), " MHz") NUMBER("clocks.max.mem", num(g, "mem_max"), " MHz")
  NUMBER("clocks.applications.gr", num(g, "ac_gr") ?: num(g, "default_gr"), " MHz") NUMBER("clocks.applications.mem", num(g, "ac_mem") ?: num(g, "default_mem"), " MHz")
  NUMBER("clocks.default_applications.gr", num(g, "default_gr"), " MHz") NUMBER("clocks.default_applications.mem", num(g, "default_mem"), " MHz")
  NUMBER("memory.used", num(g, "mem_used"), " MiB") NUMBER("memory.total", num(g, "mem_total"), " MiB")
  NUMBER("utilization.gpu", num(g, "util"), " %") NUMBER("utilization.memory", num(g, "util") / 2, " %") NUMBER("temperature.gpu", num(g, "temperature"), "")
  if (value < 0) return 0;
  if (na(g, f) || (strstr(f, "applications") && na(g, "clocks.applications.gr"))) sprintf(to, "%s", get(-1, "na_text"));
  else sprintf(to, "%d%s", value, strstr(format, "nounits") ? "" : unit);
  return 1;
}

static int query_gpu(const char *fields, const char *chosen) {
  char copy[8192], line[8192], to[4096];
  for (int g = 0; g < count(); g++) {
    if (!among(chosen, get(g, "uuid"))) continue;
    snprintf(copy, sizeof copy, "%s", fields);
    *line = 0;
    char *rest = copy, *f;
    while ((f = strsep(&rest, ","))) {
      if (!cell(g, f, to)) { printf("Field \"%s\" is not a valid field to query.\n\n", f); return 2; }
      strcat(strcat(line, *line ? ", " : ""), to);
    }
    if (!g && !strstr(format, "noheader")) printf("%s\n", fields);
    printf("%s\n", line);
  }
  fflush(stdout);
  return 0;
}

static void supported(const char *chosen) {
  const char *mhz = strstr(format, "nounits") ? "" : " MHz";
  for (int g = 0; g < count(); g++)
    for (int n = 0; n < 2 && among(chosen, get(g, "uuid")); n++) {
      int memory = num(g, n ? "mem_idle" : "mem_max");
      if (na(g, "supported")) { if (!n) printf("%s, [N/A], [N/A]\n", get(g, "uuid")); continue; }
      for (int sm = num(g, "sm_max"); memory && sm >= num(g, "sm_min"); sm -= 15)
        printf("%s, %d%s, %d%s\n", get(g, "uuid"), memory, mhz, sm, mhz);
    }
}

static void apps(const char *chosen) {
  Proc p;
  char to[64];
  for (int g = 0; g < count(); g++)
    for (int i = 0; among(chosen, get(g, "uuid")) && proc_at(g, i, &p); i++)
      if (p.kind == 'C') { cell(g, "timestamp", to); printf("%s, %s, %d, %d\n", to, get(g, "uuid"), p.pid, p.mib); }
  fflush(stdout);
}

static void xml(const char *chosen) {
  Proc p;
  printf("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n");
  for (int g = 0; g < count(); g++) {
    if (!among(chosen, get(g, "uuid"))) continue;
    printf("<gpu id=\"%s\">\n<product_name>%s</product_name>\n<uuid>%s</uuid>\n", get(g, "pci"), get(g, "name"), get(g, "uuid"));
    printf("<temperature>\n<gpu_temp>%d C</gpu_temp>\n<gpu_temp_slow_threshold>%d C</gpu_temp_slow_threshold>\n</temperature>\n<processes>\n", num(g, "temperature"), num(g, "slowdown"));
    for (int i = 0; proc_at(g, i, &p); i++)
      printf("<process_info>\n<pid>%d</pid>\n<type>%c</type>\n<process_name>%s</process_name>\n<used_memory>%d MiB</used_memory>\n</process_info>\n", p.pid, p.kind, p.name, p.mib);
    printf("</processes>\n</gpu>\n");
  }
  printf("</nvidia_smi_log>\n");
}

static void list(void) {
  for (int g = 0; g < count(); g++) {
    printf("GPU %d: %s (UUID: %s)\n", g, get(g, "name"), get(g, "uuid"));
    for (int n = 0; n < num(g, "mig"); n++) printf("  MIG 1g.10gb     Device  %d: (UUID: MIG-%d%s)\n", n, n, get(g, "uuid") + 5);
  }
}

static void help_query(void) {
  static const char *const all[] = {"timestamp", "index", "uuid", "name", "pci.bus_id", "driver_version", "compute_cap", "pstate", "persistence_mode", "display_active",
    "mig.mode.current", "clocks_event_reasons.active", "clocks_throttle_reasons.active", "power.draw", "clocks.sm", "clocks.gr", "clocks.mem", "clocks.max.sm",
    "clocks.max.gr", "clocks.max.mem", "clocks.applications.gr", "clocks.applications.mem", "clocks.default_applications.gr", "clocks.default_applications.mem",
    "memory.used", "memory.total", "utilization.gpu", "utilization.memory", "temperature.gpu"};
  printf("List of valid properties to query for the switch \"--query-gpu\":\n\n");
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!among(get(-1, "unknown_fields"), all[i])) printf("\"%s\"\nWhat it is.\n\n", all[i]);
}

static void help(void) {
  printf("NVIDIA System Management Interface -- v%s\n\n    -pm,  --persistence-mode=   Set persistence mode: 0/DISABLED, 1/ENABLED\n", get(-1, "driver"));
  const char *all[][2] = {{"-lgc", "--lock-gpu-clocks="}, {"-rgc", "--reset-gpu-clocks"}, {"-lmc", "--lock-memory-clocks="}, {"-rmc", "--reset-memory-clocks"}, {"-ac", "--applications-clocks="}, {"-rac", "--reset-applications-clocks"}};
  for (int i = 0; i < 6; i++)
    if (among(get(-1, "options"), all[i][0])) printf("    %-4s  %s\n", all[i][0], all[i][1]);
}

/* One change on one GPU; gives the exit status. `way`: what this GPU does with it. */
static int change(int g, const char *option, const char *value) {
  const char *pci = get(g, "pci"), *what = "Setting applications clocks", *of = "ac_way";
  int a = value ? atoi(value) : 0, b = value && strchr(value, ',') ? atoi(strchr(value, ',') + 1) : a;
  if (!strcmp(option + 2, "gc")) { what = "Setting locked GPU clocks"; of = "lgc_way"; }
  if (!strcmp(option + 2, "mc")) { what = "Setting locked Memory clocks"; of = "lmc_way"; }
  const char *way = get(g, strcmp(option, "-pm") ? of : "pm_way");
  if (!strcmp(way, "hang")) hang();
  if (!strcmp(way, "unsupported") && !strcmp(option, "-pm")) { printf("Unable to set persistence mode for GPU %s: Not Supported\nTreating as warning and moving on.\n", pci); return 0; }
  if (!strcmp(way, "unsupported")) { printf("%s is not supported for GPU %s.\nTreating as warning and moving on.\n", what, pci); return 0; }
  if (!allowed() || !strcmp(way, "refuse")) {
    if (!strcmp(option, "-pm")) printf("Unable to set persistence mode for GPU %s: Insufficient Permissions\n", pci);
    else printf("The current user does not have permission to change clocks for GPU %s.\n", pci);
    printf("Terminating early due to previous errors.\n");
    return 4;
  }
  int ignore = !strcmp(way, "ignore"), most = num(g, "clamp_mhz");
  if (!strcmp(option, "-pm")) {
    if (num(g, "pm") == a) { printf("Persistence mode is already %s for GPU %s.\n", a ? "Enabled" : "Disabled", pci); return 0; }
    if (!ignore) put(g, "pm", a);
    printf("%s persistence mode for GPU %s.\n", a ? "Enabled" : "Disabled", pci);
  } else if (!strcmp(option, "-lgc")) {
    if (!ignore) put(g, "lgc", !strcmp(way, "clamp") && b > most ? most : b);
    printf("GPU clocks set to \"(gpuClkMin %d, gpuClkMax %d)\" for GPU %s\n", a, b, pci);
  } else if (!strcmp(option, "-lmc")) {
    if (!ignore) put(g, "lmc", b);
    printf("Memory clocks set to \"(memClkMin %d, memClkMax %d)\" for GPU %s\n", a, b, pci);
  } else if (!strcmp(option, "-ac")) {
    if (b > num(g, "sm_max") || (b - num(g, "sm_min")) % 15 || (a != num(g, "mem_max") && a != num(g, "mem_idle"))) {
      printf("Specified clock combination \"(MEM %d, SM %d)\" is not supported for GPU %s. Run 'nvidia-smi -q -d SUPPORTED_CLOCKS' to see list of supported clock combinations\nTreating as warning and moving on.\n", a, b, pci);
      return 0;
    }
    if (!ignore) { put(g, "ac_mem", a == num(g, "default_mem") ? 0 : a); put(g, "ac_gr", b == num(g, "default_gr") ? 0 : b); }
    printf("Applications clocks set to \"(MEM %d, SM %d)\" for GPU %s\n", a, b, pci);
  } else if (!strcmp(option, "-rgc")) put(g, "lgc", 0);
  else if (!strcmp(option, "-rmc")) put(g, "lmc", 0);
  else { put(g, "ac_mem", 0); put(g, "ac_gr", 0); }
  return 0;
}

static int wrong(void) { printf("Invalid combination of input arguments. Please run `nvidia-smi -h` for help.\n\n"); return 1; }

/* The UUIDs of the GPUs that -i names, by index, UUID or PCI id; NULL where one is not there. */
static char *chosen_by(const char *ids) {
  static char chosen[8192];
  char copy[8192], *rest = copy, *id;
  *chosen = 0;
  for (int g = 0; !ids && g < count(); g++) strcat(strcat(chosen, get(g, "uuid")), g + 1 < count() ? " " : "");
  snprintf(copy, sizeof copy, "%s", ids ? ids : "");
  while (ids && (id = strsep(&rest, ","))) {
    int hit = 0;
    for (int g = 0; g < count(); g++) {
      char index[16]; snprintf(index, sizeof index, "%d", g);
      if (!strcmp(id, index) || is(g, "uuid", id) || !strcasecmp(get(g, "pci"), id)) { strcat(strcat(chosen, *chosen ? " " : ""), get(g, "uuid")); hit = 1; }
    }
    if (!hit) { printf("No devices were found\n"); return NULL; }
  }
  return chosen;
}

int main(int argc, char **argv) {
  const char *ids = NULL, *gpu = NULL, *clocks = NULL, *applications = NULL, *option = NULL, *value = NULL;
  int loop_ms = 0, q = 0, x = 0, l = 0, status = 0;
  note(argc, argv);
  load();
  if (num(-1, "smi_hang")) hang();
  for (int i = 1; i < argc; i++) {
    const char *w = argv[i], *is = strchr(w, '=') ? strchr(w, '=') + 1 : "";
    if (!strcmp(w, "--help") || !strcmp(w, "-h")) { help(); return 0; }
    if (!strcmp(w, "--help-query-gpu")) { help_query(); return 0; }
    if (!strcmp(w, "--version")) { printf("NVIDIA-SMI version  : %s\n", get(-1, "driver")); return 0; }
    if (!strncmp(w, "--query-gpu=", 12)) gpu = is;
    else if (!strncmp(w, "--query-supported-clocks=", 25)) clocks = is;
    else if (!strncmp(w, "--query-compute-apps=", 21)) applications = is;
    else if (!strncmp(w, "--format=", 9)) format = is;
    else if (!strncmp(w, "--loop-ms=", 10)) loop_ms = atoi(is);
    else if (!strcmp(w, "-q")) q = 1;
    else if (!strcmp(w, "-x")) x = 1;
    else if (!strcmp(w, "-L")) l = 1;
    else if (!strcmp(w, "-i") && i + 1 < argc) ids = argv[++i];
    else if (!strcmp(w, "-pm") || among(get(-1, "options"), w)) { option = w; if (w[1] != 'r' && i + 1 < argc) value = argv[++i]; }
    else return wrong();
  }
  if (num(-1, "no_driver")) {
    printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n\n");
    return 9;
  }
  const char *chosen = chosen_by(ids);
  if (!chosen) return 6;
  do {
    load();
    if (gpu) status = query_gpu(gpu, chosen);
    if (clocks) supported(chosen);
    if (applications) apps(chosen);
    if (loop_ms && !status) usleep(1000 * loop_ms);
  } while (loop_ms && !status);
  if (q && x) xml(chosen);
  if (l) list();
  for (int g = 0; option && !status && g < count(); g++)
    if (among(chosen, get(g, "uuid"))) status = change(g, option, value);
  if (option && !status) printf("All done.\n");
  return gpu || clocks || applications || q || l || option ? status : wrong();
}
#endif
