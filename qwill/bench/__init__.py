"""Measuring speed: our own, and side by side with others on exactly equal work.

compare.py       the comparison: equal work or refusal, equal token ids or the place where they part
decode.py        our own speed alone
contestants.py   what is compared: each runs in a process of its own, worker.py, driven by process.py
results.py       the numbers; report.py shows them; machine.py says where they were measured
random_model.py  a full-size model of random weights, so that no download is needed
"""
