// Makes NVTX ranges of every kind, and some system calls: the program behind osrt_nvtx.sql.
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    nvtxDomainHandle_t data = nvtxDomainCreateA("data");
    nvtxStringHandle_t load = nvtxDomainRegisterStringA(data, "load");
    for (int step = 0; step < 3; step++) {
        nvtxRangePushA("step");
        nvtxEventAttributes_t named = {0};
        named.version = NVTX_VERSION; named.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
        named.messageType = NVTX_MESSAGE_TYPE_REGISTERED; named.message.registered = load;
        nvtxDomainRangePushEx(data, &named);
        for (int i = 0; i < 5 + step; i++) {
            char line[256];
            FILE *file = fopen("/proc/self/status", "r");
            while (fgets(line, sizeof line, file)) {}
            fclose(file);
        }
        usleep(20000);
        nvtxDomainRangePop(data);
        nvtxRangePop();
    }
    nvtxRangeId_t crossing = nvtxRangeStartA("crossing");
    usleep(30000);
    nvtxRangeEnd(crossing);
    nvtxMarkA("mark");
    nvtxRangePushA("open");
    usleep(10000);
    return 0;
}
