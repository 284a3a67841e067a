"""OpenAI's API in plain values: a request's body becomes what `LLM` takes, its outputs become a response's body.

`requests` reads bodies, `responses` builds them, `errors` turns what was raised into a status and an error object,
`batch` reads and builds the lines of batch files. Torch-free; knows no file and no HTTP.
"""
