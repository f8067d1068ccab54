"""The CPU's kernels: one library of C++17 with plain C functions, called by ctypes.

Each header has one recursion: its equations at the head, and the plain form that it computes. Each `.cpp` exports
functions of a header for both sizes of numbers. `compiling` builds the library when the package is installed, and
`library` loads it. A function is given pointers and sizes, keeps nothing, and holds no lock of Python.
"""
