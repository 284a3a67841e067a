"""Measuring speed: our own, and side by side with others on exactly equal work.

compare.py       the comparison: equal work or refusal, equal token ids or the place where they part
decode.py        our own speed alone: decoding; prefill.py: prompts; alone.py: what they share
kernels.py       each native op by itself, against the machine's limits; kernel_report.py shows it
serve_offline.py many requests at once; workload.py: which, serving.py: through the engine, serving_report.py shows it
contestants.py   what is compared: each runs in a process of its own, worker.py, driven by process.py
occasion.py      when and where: the head of every record
results.py       the numbers; report.py shows them; machine.py says where they were measured
random_model.py  a full-size model of random weights, so that no download is needed
"""
