"""Runs the shaders of shaders/ on an NVIDIA GPU: translated to CUDA, a simdgroup being a warp.

`source` turns a .metal file into CUDA text (with the translator and the headers of the software
Metal), `nvrtc` compiles one specialisation of it, `device` launches it. include/ has what the
language's library is made of there.
"""
