"""The program behind the collector `monitor` (`python -I orchestrator/sampler --help`): reads at an interval what the
host, a process tree and the GPUs do, and writes it down as it is counted.

A process of its own, run by profrun's Python: it imports nothing of profrun, and of other packages only `nvidia-ml-py`,
where that is installed. All else is read from /proc (proc(5)). Every line that it writes is a JSON object with `t`, ns
since the Unix epoch, and `m`, ns of the monotonic clock. The first names the columns; then come, in any order,

    {"t", "m", "host": {"": [...]}, "core": {"0": [...]}, "process": {"4711": [...]}, "gpu": {"GPU-...": [...]}, ...}
                    readings, in the order of the columns; null is what this machine does not tell
    {"t", "m", "seen": PID, "parent", "name", "exec"}       a process appeared, or (exec) became another program
    {"t", "m", "rank": N, "of": PID}                        that process is told its rank by its environment
    {"t", "m", "mappings": {"4711": [[NAME, PSS], ...]}}    what takes most of a process's memory, at the end
    {"t", "m", "environment": {NAME: TEXT}}                 which GPUs the target was given, where it says so
    {"t", "m", "devices": [{"uuid", "index", "name"}], "through"}       the GPUs, and who tells of them
    {"t", "m", "note"}          what went wrong
    {"t", "m", "end"}           why it ended: the last line

Counters are written as they stand; rates are for whoever reads the file.
"""
