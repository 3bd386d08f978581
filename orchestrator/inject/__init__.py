"""What profrun adds to the target's own Python: seeds, the count of its steps, ranges, torch.profiler on a window.

It runs inside somebody else's program, so: standard library only, Python 3.8 to 3.14, nothing imported that the program
does not import itself, nothing raised into it, no frame of ours in its tracebacks. `site/` alone is put on PYTHONPATH;
the `sitecustomize` in it loads this folder as the package `_profrun`, whose modules can shadow none of the program's.

    boot      reads the settings, signs in, hands over to the parts below
    around    something before and after a call, without a frame in between
    imports   something right after a module was imported
    pending   something in the main thread; what a signal's handler raises amid our part
    diary     what the report will know of this process
    bell      asking profrun, and waiting until its tools are ready
    training  where torch tells of steps; `compiled` keeps it out of torch.compile
    phases    the methods whose calls are a phase of a step
    steps     the log of steps, in a file that survives any end (`mapped`)
    window    what happens at which step; `profiler` is torch.profiler there
    gputimes  the GPU's own time between CUDA events; `nvtx` the ranges for nsys and ncu
    ranges    named functions as ranges
    seeds     random numbers that repeat; `listings` sorts directories
"""
