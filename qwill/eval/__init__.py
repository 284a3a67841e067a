"""Quality: how far a quantized model's predictions are from the unquantized one's. Measures no speed.

texts       a file -> text, or a refusal
scores      logits of both models at the same positions -> divergence, agreement, likelihood
quality     the numbers of an evaluation, and what is derived from them
kl          two models over one text, window by window
report      the numbers for a reader
"""
