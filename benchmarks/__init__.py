"""Speed and memory of regmax, beside PyTorch and other packages.

    make bench                  on the CPU                  -> build/bench/benchmarks.md
    make bench BENCH=docs       into the committed page docs/benchmarks.md
    make gpu                    what is right and how fast  -> build/bench/gpu.md

All candidates of a case (a shape, a dtype, an input) run in one process, in rounds. A round runs
them one after the other in a random order, the next round in the reverse order, all on the same
inputs and in the same warm memory. Slow candidates take part in fewer rounds. A run is a
forward pass that builds the graph and a backward pass; figures are medians. CUDA events mark the
time on the device, and a buffer larger than the L2 cache is written before each run.

    gpu         the program of make gpu, gpu_cases what it runs, gpu_report what it writes
    plan        sizes and targets                       timing    the rounds
    inputs      scores                                  memory    warm, and its peak
    peers       mappings, as regmax and others have     first     first calls, in fresh processes
    own         Ω by its value, and compositions        page      Markdown tables, the page
    learning    losses and attention                    sections  one function per section
"""
