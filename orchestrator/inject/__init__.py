"""What profrun adds to the target's own Python: seeds, the count of its steps, ranges, torch.profiler on a window.

It runs inside somebody else's program, so: standard library only, Python 3.8 to 3.14, nothing imported that the program
does not import itself, nothing raised into it, no frame of ours in its tracebacks. `site/` alone is put on PYTHONPATH;
the `sitecustomize` in it loads this folder as the package `_profrun`, whose modules can shadow none of the program's.

    boot      reads the settings, signs in, hands over to the parts below
    around    something before and after a call, without a frame in between
    imports   something right after a module was imported
    diary     what the report will know of this process
    bell      asking profrun, and waiting until its tools are ready
    steps     the steps and what each was spent on, in a file that survives any end
    training  where torch tells of steps
    profiler  torch.profiler on the window
    ranges    named functions as ranges
    seeds     random numbers that repeat
"""
