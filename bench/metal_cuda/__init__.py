"""Runs the shaders of shaders/ on an NVIDIA GPU: translated to CUDA, a simdgroup being a warp.

`source` turns a .metal file into CUDA text (with the translator and the headers of the software
Metal), `prepared` keeps it with the launches that are wanted, `nvrtc` compiles one specialisation,
`device` launches and times it; `cases` says what is run, `checks` and `speed` run it. include/ has
what the language's library is made of on CUDA.
"""
