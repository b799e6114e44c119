"""How fast regmax is, beside torch.softmax and beside what else computes the same maps.

    make bench                  the CPU, under ten minutes on two cores  -> build/bench/
    make bench-gpu              a CUDA device                            -> build/bench/
    make bench BENCH=docs       the same, into the committed page docs/benchmarks.md

or ``python -m benchmarks --help``. A run writes ``benchmarks/<device>.json`` (every figure, with
the machine, the versions and the command), plots, and ``benchmarks.md``, which is made from the
JSON files alone: ``--render`` makes it again without measuring.

Method. All candidates of one case (a shape, a dtype, an input) run in the same process, in rounds:
each round runs them one after the other in a new random order, so that drift of the machine and the
state of its caches hit all alike. Slow candidates take part in fewer rounds, evenly spread. A run
is a forward pass that builds the graph, then ``y.backward(v)`` into a gradient that was None.
Figures are medians with quartiles; ratios are of medians from the same rounds. The first call,
which compiles or loads kernels, is warm-up here and has a section of its own. On CUDA, events mark
the time on the device, and a buffer larger than the L2 cache is written before each run.

    plan       what is measured, and the bars       summary    ratios, means, verdicts
    inputs     the scores                           report     the page
    peers      who is measured                      plots      its pictures
    timing     the rounds                           child      what needs a process of its own
    sections   the sections of the page             system     machine, versions, commit
    own        Ω by its value, and compositions     own_page   their part of the page
    words      tables and numbers                   learning_page   of these two:
    loss_steps, attention_steps    what is learnt with, beside PyTorch's own
"""
